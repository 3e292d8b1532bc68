"""Softmax at a temperature that may go to 0 or to infinity, over logits of any size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nantrap.ops.precision import widen


def temperature_softmax(
    logits: Tensor, temperature: float | Tensor, *, dim: int = -1, limits: tuple[float, float] = (1e-4, 1e4)
) -> Tensor:
    """softmax(z / T) with T held within `limits`: one-hot at the low end (ties share), even at the high end.

    z / T overflows for large z or small T, and Inf - Inf is NaN; T = 0 divides 0 by 0 at the maximum. Softmax does
    not change when a number is subtracted from the whole row, so the maximum is subtracted *before* the division: the
    quotients are then at most 0, and the worst they become is -Inf, whose exponential is 0. Half precision is
    computed in float32.

    Args:
        logits: Any shape, floating point; the result has its dtype. -Inf is probability 0; NaN and +Inf give NaN.
        temperature: A number or a tensor that broadcasts to the logits and may be learned; outside the limits it
            has gradient 0.
        dim: The dimension that sums to 1.
        limits: The lowest and the highest temperature used.

    Example:
        >>> temperature_softmax(torch.tensor([1e30, 2e30, -1e30]), 0.0)
        tensor([0., 1., 0.])
    """
    return F.softmax(_scaled(logits, temperature, dim, limits), dim).to(logits.dtype)


def temperature_log_softmax(
    logits: Tensor, temperature: float | Tensor, *, dim: int = -1, limits: tuple[float, float] = (1e-4, 1e4)
) -> Tensor:
    """The logarithm of `temperature_softmax`, without the underflow: log softmax(z / T).

    Example:
        >>> temperature_log_softmax(torch.tensor([0.0, -20.0]), 0.1)
        tensor([   0., -200.])
    """
    return F.log_softmax(_scaled(logits, temperature, dim, limits), dim).to(logits.dtype)


def _scaled(logits: Tensor, temperature: float | Tensor, dim: int, limits: tuple[float, float]) -> Tensor:
    """The logits divided by the temperature within its limits, each row shifted to a maximum of 0."""
    low, high = limits
    if not 0 < low <= high:
        raise ValueError(f"limits must be 0 < low <= high, not {limits}")
    wide = widen(logits)
    if wide.shape[dim] == 0:
        return wide
    lowest = torch.finfo(wide.dtype).min
    # The maximum is a constant of the row: subtracting it changes nothing, so it carries no gradient either.
    shifted = wide - wide.detach().amax(dim, keepdim=True).clamp_(min=lowest)
    if isinstance(temperature, Tensor):
        # -inf stays out of the product: the slope in 1/T is a sum of gradient · shifted, and 0 · -inf is NaN.
        return F.threshold(shifted, lowest, lowest) * widen(temperature).clamp(low, high).reciprocal()
    return shifted / min(max(temperature, low), high)
