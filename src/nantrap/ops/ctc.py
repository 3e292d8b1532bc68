"""CTC of batches in which a target may not fit into its input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from nantrap.ops.precision import widen

_LOWEST_LOG_PROBABILITY = -1e4


def ctc_feasible(
    targets: Tensor, input_lengths: Tensor | Sequence[int], target_lengths: Tensor | Sequence[int]
) -> Tensor:
    """Which targets fit: input length ≥ target length + number of neighbours that are equal.

    CTC puts a blank between two equal labels, so "AAB" needs 4 frames, not 3.

    Args:
        targets: [B, S], padded.
        input_lengths: [B].
        target_lengths: [B].

    Returns:
        Boolean, [B].

    Example:
        >>> ctc_feasible(torch.tensor([[1, 1, 2], [1, 2, 3]]), [3, 3], [3, 3])
        tensor([False,  True])
    """
    if targets.dim() != 2:
        raise ValueError(
            f"targets have shape {tuple(targets.shape)}, but must be padded to [batch, length]; "
            "torch.nn.utils.rnn.pad_sequence(list_of_targets, batch_first=True) does it"
        )
    inputs = torch.as_tensor(input_lengths, device=targets.device)
    lengths = torch.as_tensor(target_lengths, device=targets.device)
    position = torch.arange(1, targets.shape[1], device=targets.device)
    repeats = ((targets[:, 1:] == targets[:, :-1]) & (position < lengths[:, None])).sum(1)
    return inputs >= lengths + repeats


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    *,
    blank: int = 0,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Tensor:
    """`torch.nn.functional.ctc_loss` over the samples whose target fits; the others are 0 with gradient 0.

    A target that does not fit has probability 0: loss Inf, gradient NaN. torch's `zero_infinity=True` hides it, still
    divides by the whole batch, and lets through the NaN gradient of a log-probability of -Inf, even of a class that no
    target uses. Here the mean is over the samples that fit (`ctc_feasible` says which do not), what an infeasible
    sample holds reaches nothing, and log-probabilities below -10,000 count as -10,000 with gradient 0.

    torch's CTC kernel has no second derivative, and `torch.compile` breaks its graph at it.

    Args:
        log_probs: [T, B, C], from log_softmax. Half precision is computed in float32 and the loss stays there.
        targets: [B, S], padded.
        input_lengths: [B].
        target_lengths: [B].
        blank: The class of the blank.
        reduction: "mean" divides each loss by its target length first, as in torch.

    Example:
        >>> log_probs = torch.zeros(2, 2, 3).log_softmax(-1)
        >>> ctc_loss(log_probs, torch.tensor([[1, 1], [1, 2]]), (2, 2), (2, 2), reduction="none")
        tensor([0.0000, 2.1972])
    """
    if log_probs.dim() != 3:
        raise ValueError(f"log_probs have shape {tuple(log_probs.shape)}, but must be [time, batch, classes]")
    fits = ctc_feasible(targets, input_lengths, target_lengths)
    wide = torch.where(fits[:, None], widen(log_probs), 0.0)
    losses = F.ctc_loss(
        F.threshold(wide, _LOWEST_LOG_PROBABILITY, _LOWEST_LOG_PROBABILITY),
        targets,
        input_lengths,  # type: ignore[arg-type]  # torch's stub forgets the tuple
        target_lengths,  # type: ignore[arg-type]
        blank=blank,
        reduction="none",
        zero_infinity=True,
    )
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    lengths = torch.as_tensor(target_lengths, device=losses.device).clamp(min=1)
    return (losses / lengths).sum() / fits.sum().clamp(min=1)
