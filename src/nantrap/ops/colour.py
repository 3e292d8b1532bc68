"""Token ids as colours and back, for models that read text as an image.

id = r + 256·g + 65,536·b, each channel scaled to [-1, 1]. The plain arithmetic never fails: -1 % 256 is 255, an id of
2²⁴ wraps to black, and NaN becomes some integer. Every one of these is a wrong token without an error, so both
directions check their input and name the first offender. The check reads one value back from the device; it is the
only operation here that does, and `check=False` leaves it out.
"""

from __future__ import annotations

import torch
from torch import Tensor

COLOURS = 256**3


def tokens_to_colour(tokens: Tensor, *, vocabulary: int = COLOURS, check: bool = True) -> Tensor:
    """The colour of each token, float32 in [-1, 1], with a last dimension of 3 (red holds the low byte).

    Args:
        tokens: Integer ids in [0, vocabulary), any shape.
        vocabulary: Number of ids; at most 2²⁴.
        check: Raise `ValueError` for an id outside the range. Reads one value from the device.

    Example:
        >>> tokens_to_colour(torch.tensor([255, 256]))
        tensor([[ 1.0000, -1.0000, -1.0000],
                [-1.0000, -0.9922, -1.0000]])
    """
    _require_vocabulary(vocabulary)
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise ValueError(f"tokens are {tokens.dtype}, but ids must be integers")
    ids = tokens.to(torch.int64)
    if check and ids.numel():
        lowest, highest = torch.aminmax(ids)
        if bool((lowest < 0) | (highest >= vocabulary)):
            _require((ids < 0) | (ids >= vocabulary), ids, f"token ids must lie in [0, {vocabulary})")
    # shifts and masks: integer divisions take ten times as long
    channels = torch.stack((ids & 255, ids >> 8 & 255, ids >> 16 & 255), -1)
    return channels.to(torch.float32).div_(127.5).sub_(1)


def colour_to_tokens(colour: Tensor, *, vocabulary: int = COLOURS, check: bool = True) -> Tensor:
    """The nearest token of each colour. A colour beyond [-1, 1] counts as the nearest one within.

    Args:
        colour: Floating point, [..., 3]; a model's prediction.
        vocabulary: Number of ids; at most 2²⁴.
        check: Raise `ValueError` for NaN, and for a colour that is not an id of the vocabulary. Reads one value from
            the device. Without it NaN counts as black and an id too large as the last one.

    Example:
        >>> colour_to_tokens(tokens_to_colour(torch.tensor([0, 151_642])))
        tensor([     0, 151642])
    """
    _require_vocabulary(vocabulary)
    if not colour.is_floating_point() or colour.dim() == 0 or colour.shape[-1] != 3:
        raise ValueError(f"colours must be floating point [..., 3], not {colour.dtype} {tuple(colour.shape)}")
    if check:
        _require(colour.isnan(), colour, "colours must not be NaN")
    channels = ((colour.float().nan_to_num(-1.0).clamp(-1, 1) + 1) * 127.5).round().to(torch.int64)
    red, green, blue = channels.unbind(-1)
    ids = red + 256 * green + 65_536 * blue
    if check:
        _require(ids >= vocabulary, ids, f"colours must decode to ids in [0, {vocabulary})")
    return ids.clamp(max=vocabulary - 1)


def _require_vocabulary(vocabulary: int) -> None:
    if not 0 < vocabulary <= COLOURS:
        raise ValueError(f"vocabulary is {vocabulary}, but three bytes hold 1 to {COLOURS} ids")


def _require(bad: Tensor, values: Tensor, rule: str) -> None:
    """Raise if anything is bad; the position and the value are read only then."""
    if not bool(bad.any()):
        return
    position = tuple(int(i) for i in bad.nonzero()[0])
    raise ValueError(f"{rule}, but {values[position].item()} is at {position}; {int(bad.sum())} are wrong in total")
