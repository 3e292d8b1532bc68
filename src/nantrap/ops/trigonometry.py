"""acos and asin, whose slopes are infinite at ±1: where every angle between parallel vectors lies."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def safe_acos(x: Tensor) -> Tensor:
    """acos(clamp(x, -1, 1)), exact everywhere; the slope -1/√(1-x²) is 0 at ±1 and beyond.

    A cosine similarity of 1 + 1e-7 makes `acos` NaN; one of exactly 1 makes its slope -Inf. Clamping to 1 - 1e-7
    gives an angle of 5e-4 where it is 0, and rounds to 1 in half precision anyway. Beyond ±1 (±Inf too) counts as
    rounding and is clamped; NaN stays NaN.

    Example:
        >>> x = torch.tensor([1.0, 0.0, 1.0000002], requires_grad=True)
        >>> torch.autograd.grad(safe_acos(x).sum(), x)
        (tensor([-0., -1., -0.]),)
    """
    angle: Tensor = _Acos.apply(x)  # type: ignore[no-untyped-call]
    return angle


def safe_asin(x: Tensor) -> Tensor:
    """asin(clamp(x, -1, 1)), exact everywhere; the slope 1/√(1-x²) is 0 at ±1 and beyond. See `safe_acos`.

    Example:
        >>> x = torch.tensor([1.0, 0.0, -2.0], requires_grad=True)
        >>> torch.autograd.grad(safe_asin(x).sum(), x)
        (tensor([0., 1., 0.]),)
    """
    angle: Tensor = _Asin.apply(x)  # type: ignore[no-untyped-call]
    return angle


def _slope(x: Tensor) -> Tensor:
    """1/√(1-x²), 0 where |x| ≥ 1. The product (1-x)(1+x) keeps the digits that 1-x² loses near ±1."""
    return F.threshold((1 - x) * (1 + x), 0.0, math.inf).rsqrt()


class _Acos(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(-1, 1).acos_()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * -_slope(x)


class _Asin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(-1, 1).asin_()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * _slope(x)
