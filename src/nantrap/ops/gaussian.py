"""The KL divergence of a Gaussian given by mean and log-variance."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from nantrap.ops.precision import widen


def kl_divergence(
    mu: Tensor, logvar: Tensor, *, reduction: Literal["mean", "sum", "none"] = "mean", limit: float = 20.0
) -> Tensor:
    """KL(N(μ, σ²) ‖ N(0, 1)) = ½(μ² + σ² - 1 - log σ²), with σ² = exp(logvar) continued as a line above the limit.

    exp overflows above 88.7, in float16 above 11.09. Clamping the log-variance stops that, but gives it gradient 0
    beyond the clamp: it can never come back. Here e^l continues as its tangent e^limit·(1 + l - limit), which is
    finite, continuous in value and slope, and still pulls back. Below there is no limit: -log σ² is a line already.
    `expm1` keeps the digits of σ² - 1 near σ = 1.

    Args:
        mu: The mean. Half precision is computed in float32 and the result stays there.
        logvar: The log-variance, of the same shape.
        reduction: "none" keeps the shape.
        limit: The log-variance from which the exponential is a line.

    Example:
        >>> kl_divergence(torch.zeros(2), torch.tensor([0.0, 1000.0])).isfinite()
        tensor(True)
    """
    spread: Tensor = _Spread.apply(widen(logvar), limit)  # type: ignore[no-untyped-call]
    doubled = widen(mu).square() + spread
    if reduction == "none":
        return 0.5 * doubled
    return 0.5 * (doubled.sum() if reduction == "sum" else doubled.mean())


class _Spread(torch.autograd.Function):
    """f(l) = e^l - 1 - l, above the limit its tangent; f'(l) = e^min(l, limit) - 1."""

    @staticmethod
    def forward(ctx: Any, logvar: Tensor, limit: float) -> Tensor:
        below = logvar.clamp(max=limit)
        slope = below.expm1()
        ctx.save_for_backward(logvar, slope)
        ctx.limit = limit
        # (e^b - 1) - b + (e^limit - 1)·a. Not - l, which would be Inf - Inf for a log-variance of Inf.
        above = (logvar - limit).clamp_(min=0)
        return above.mul_(math.expm1(limit)).sub_(below).add_(slope)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        logvar, slope = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted, and the kept slope is a constant
            slope = logvar.clamp(max=ctx.limit).expm1()
        return grad * slope, None
