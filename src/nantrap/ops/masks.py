"""What a mask means here: boolean, True keeps. The one place that reads the shape and the dtype of a mask."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def as_mask(mask: Tensor) -> Tensor:
    """A boolean mask in which True keeps.

    Integers (the 1 and 0 of a tokenizer) are accepted. A floating-point mask is refused: it may be
    additive (0 keeps, -inf drops) or a weight, and the wrong guess inverts the mask without a sound.
    """
    if mask.dtype == torch.bool:
        return mask
    if mask.is_floating_point() or mask.is_complex():
        raise ValueError(
            f"the mask is {mask.dtype}, but a mask must be boolean, True where a value is kept. "
            "Pass `mask != 0` if 1 keeps, `mask == 0` if it is an additive mask of 0 and -inf."
        )
    return mask != 0


def any_kept(mask: Tensor, dim: int) -> Tensor:
    """`mask.any(dim, keepdim=True)`, through an int8 view: its maximum is vectorised, `any` is 20 times slower."""
    if mask.shape[dim] == 0:  # a maximum of nothing does not exist, `any` of nothing is False
        return mask.any(dim, keepdim=True)
    return mask.view(torch.int8).amax(dim, keepdim=True).view(torch.bool)


def reduced_dims(dim: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """The dimensions a reduction runs over, counted from the front; all of them for `None`."""
    if dim is None:
        return tuple(range(ndim))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    return tuple(d % ndim for d in dims)


def count_kept(mask: Tensor, shape: torch.Size, dims: tuple[int, ...]) -> Tensor:
    """How many positions of `shape` the mask keeps, summed over `dims` (which stay, with size 1).

    A mask that is broadcast is counted once and multiplied: [B, 1, H, W] over 64 channels is read once, not 64 times.
    """
    mask = mask.reshape((1,) * (len(shape) - mask.dim()) + mask.shape)
    if not dims:  # torch sums over everything when it is given no dimension
        return mask.to(torch.int64)
    copies = math.prod([shape[d] for d in dims if mask.shape[d] == 1])  # a list: torch.compile wants one
    return mask.sum(dims, keepdim=True) * copies
