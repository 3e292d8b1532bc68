"""Rows that sum to one: softmax at any temperature, weights that may all be zero, and Sinkhorn's normalisation."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nantrap.ops.elementary import infinite_at_zero, safe_divide
from nantrap.ops.precision import smallest_normal, widen


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


def sinkhorn(logits: Tensor, *, iterations: int = 20) -> Tensor:
    """exp(logits), its rows and columns normalised in turn: rows sum to 1 nearly, columns exactly.

    exp overflows above 88.7 (11.09 in float16), and a row far below the others becomes 0/0; `where(isnan(M), 1/n, M)`
    then repairs the value and leaves the gradient NaN. In log space, dividing a row by its sum is
    L - logsumexp(L) = log_softmax(L): one fused kernel that neither overflows nor divides.

    -Inf (a forbidden entry) becomes a very large negative number, so a row of nothing else comes out even, and +Inf
    a very large positive one, both with gradient 0. NaN stays NaN and reaches its whole matrix.

    Args:
        logits: [..., n, n]; the result has its dtype, half precision is computed in float32.
        iterations: How often rows and columns are normalised.

    Example:
        >>> sinkhorn(torch.tensor([[1000.0, 0.0], [0.0, 1000.0]]))
        tensor([[1., 0.],
                [0., 1.]])
    """
    wide = widen(logits)
    bound = torch.finfo(wide.dtype).max / 4  # differences of two such numbers still fit
    log_matrix = F.hardtanh(wide, -bound, bound)
    for _ in range(iterations):
        log_matrix = log_matrix.log_softmax(-1).log_softmax(-2)
    return log_matrix.exp().to(logits.dtype)


class Sinkhorn(nn.Module):
    """`sinkhorn` as a module.

    Example:
        >>> Sinkhorn(iterations=50)(torch.randn(3, 4, 4)).sum(-1).allclose(torch.ones(3, 4), atol=1e-4)
        True
    """

    def __init__(self, *, iterations: int = 20) -> None:
        super().__init__()
        self.iterations = iterations

    def forward(self, logits: Tensor) -> Tensor:
        return sinkhorn(logits, iterations=self.iterations)

    def extra_repr(self) -> str:
        return f"iterations={self.iterations}"
