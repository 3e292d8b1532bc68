"""Weights that sum to one, also when they are all zero."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nantrap.ops.elementary import infinite_at_zero, safe_divide
from nantrap.ops.precision import smallest_normal, widen


def normalize_weights(weights: Tensor, *, dim: int = -1) -> Tensor:
    """w / Σw; weights that sum to 0 become even (1/n) with gradient 0.

    0/0 is NaN, and an epsilon in the denominator gives weights of 0: the loss is then 0 and the run silently stops
    to learn. No preference means an even one. It is computed as (w/n) / mean(w), since a sum may overflow and a mean
    does not; a mean at or below the smallest normal number counts as 0.

    Args:
        weights: Non-negative; the result has their dtype, half precision is computed in float32.
        dim: The dimension that sums to 1.

    Example:
        >>> normalize_weights(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
        tensor([[0.2500, 0.7500],
                [0.5000, 0.5000]])
    """
    if weights.numel() == 0:
        return weights
    share: Tensor = _Share.apply(widen(weights), dim)  # type: ignore[no-untyped-call]
    return share.to(weights.dtype)


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: Tensor, dim: int) -> Tensor:
        """Each weight's share of the sum; even shares where the sum is 0."""
        part = w / w.shape[dim]
        mean = part.sum(dim, keepdim=True)
        tiny = smallest_normal(w.dtype)
        even = (mean.abs() <= tiny).to(w.dtype) / w.shape[dim]
        divisor = infinite_at_zero(mean, tiny)
        share = part.div_(divisor).add_(even)
        ctx.save_for_backward(w, share, divisor)
        ctx.dim = dim
        return share

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        w, share, divisor = ctx.saved_tensors  # the divisor of even weights is infinite: slope 0
        size = w.shape[ctx.dim]
        uneven = grad - (grad * share).sum(ctx.dim, keepdim=True)
        if torch.is_grad_enabled():  # a second derivative is wanted, and the kept divisor is a constant
            return safe_divide(uneven, (w / size).sum(ctx.dim, keepdim=True)) / size, None
        return uneven.div_(divisor).div_(size), None
