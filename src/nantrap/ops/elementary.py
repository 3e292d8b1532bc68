"""Elementary functions without the points at which they or their slopes are infinite: log, √, xᵖ, a/b, x·log x, acos.

One idea serves most of them. Where a slope would be infinite, the number that it is divided by is replaced by
infinity, and `g / inf` is 0: an exact zero, reached without a branch and without ever making a NaN. `torch.where`
after the fact cannot do this: it selects the value, but the branch that was not selected still sends back
`0 * inf = NaN`.

What they have in common: NaN in, NaN out. A result that is finite in exact arithmetic is finite here. A result that
the dtype cannot hold (1e30 / 1e-30 in float32) is still Inf: that is an overflow to repair, not a singularity.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nantrap.ops.precision import floating, representable_floor, smallest_normal, widen


def safe_log(x: Tensor, *, floor: float | None = None) -> Tensor:
    """log(max(x, floor)); the slope is 1/x above the floor and 0 below it.

    log(0) is -Inf and its slope 1/0 is Inf; the slope overflows already for subnormal x. So the floor is the
    smallest normal number (1.2e-38 in float32), where 1/x still fits. An `x + eps` would move every value and is
    lost in half precision, where 1e-8 is 0. Zero, negative and -Inf inputs give log(floor); log(Inf) is Inf.

    Args:
        x: Any shape. Counts are taken as floating-point numbers, as torch.log takes them.
        floor: A higher floor. A lower one than the dtype can hold is raised to it.

    Example:
        >>> x = torch.tensor([0.0, 1.0], requires_grad=True)
        >>> safe_log(x)
        tensor([-87.3365,   0.0000], grad_fn=<_LogBackward>)
        >>> torch.autograd.grad(safe_log(x).sum(), x)
        (tensor([0., 1.]),)
    """
    x = floating(x)
    log: Tensor = _Log.apply(x, representable_floor(floor, x.dtype))  # type: ignore[no-untyped-call]
    return log


class _Log(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, floor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.floor = floor
        return x.clamp_min(floor).log_()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return _over(grad, F.threshold(x, ctx.floor, math.inf)), None  # `x if x > floor else inf`; NaN passes


def _over(grad: Tensor, divisor: Tensor) -> Tensor:
    """grad / divisor; in the divisor's own memory, unless it must be differentiated again."""
    return grad / divisor if torch.is_grad_enabled() else torch.div(grad, divisor, out=divisor)


def safe_sqrt(x: Tensor) -> Tensor:
    """√max(x, 0), exact everywhere; the slope 1/(2√x) is 0 where x is 0 or negative.

    The slope at 0 is infinite, and 0 · Inf = NaN where something before is flat, as in `x.square().sum().sqrt()`.
    Negative x comes from rounding (a variance of -1e-9) and counts as 0.

    Example:
        >>> x = torch.tensor([0.0, 4.0], requires_grad=True)
        >>> torch.autograd.grad(safe_sqrt(x).sum(), x)
        (tensor([0.0000, 0.2500]),)
    """
    root: Tensor = _Sqrt.apply(floating(x))  # type: ignore[no-untyped-call]
    return root


class _Sqrt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        root = x.clamp_min(0).sqrt_()
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        return _over(grad, F.threshold(root, 0.0, math.inf).mul_(2))  # a root of 0 becomes inf: slope 0


def safe_pow(x: Tensor, exponent: float | Tensor) -> Tensor:
    """xᵖ for x ≥ 0; 0 with slope 0 where x is below the smallest normal number and p is not a natural number.

    For p < 0 the value at 0 is infinite, for p < 1 the slope p·xᵖ⁻¹, and a negative base has no real power. For
    natural p none of this happens, and `torch.pow` is called directly, negative bases included.

    Args:
        x: The base.
        exponent: A number, or a tensor that broadcasts to `x` and may be learned (0⁰ is 1 and log 0 never appears).

    Example:
        >>> x = torch.tensor([0.0, 16.0], requires_grad=True)
        >>> torch.autograd.grad(safe_pow(x, 0.75).sum(), x)
        (tensor([0.0000, 0.3750]),)
    """
    x = floating(x)
    tiny = smallest_normal(x.dtype)
    if isinstance(exponent, Tensor):
        return _learned_pow(widen(x), widen(exponent), tiny).to(x.dtype)
    # In float32 at least: torch rounds the exponent to the base's dtype, and bfloat16 takes 0.6 for 0.6016.
    return _pow(widen(x), float(exponent), tiny).to(x.dtype)


def _pow(x: Tensor, exponent: float, tiny: float) -> Tensor:
    if exponent >= 0 and exponent.is_integer():
        return torch.pow(x, exponent)
    power: Tensor = _Pow.apply(x, exponent, tiny)  # type: ignore[no-untyped-call]
    return power


class _Pow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, exponent: float, tiny: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.exponent, ctx.tiny = exponent, tiny
        return F.threshold(x, tiny, 0.0 if exponent > 0 else math.inf).pow_(exponent)  # the power of either is 0

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return grad * (ctx.exponent * _pow(x, ctx.exponent - 1, ctx.tiny)), None, None


def _learned_pow(x: Tensor, exponent: Tensor, tiny: float) -> Tensor:
    power = torch.pow(F.threshold(x, tiny, 1.0), exponent)  # the dead bases compute 1ᵖ, whose slopes are finite
    # Not `x > tiny` for the living ones: that is False for NaN and would hide it.
    return torch.where(x <= tiny, (exponent == 0).to(power.dtype), power)


def safe_divide(numerator: float | Tensor, denominator: Tensor, *, floor: float | None = None) -> Tensor:
    """a / b, and 0 with slope 0 in both where |b| is at or below the floor (the smallest normal number).

    The denominator's zeros become infinities, so a/b, 1/b and a/b² are all 0 there. Adding an epsilon instead shifts
    every quotient, gives 1e8 at zero, is 0 for a negative b of exactly -eps, and vanishes in half precision.
    Inf/0 is NaN: it has no meaning, and it is not hidden.

    Args:
        numerator: A tensor or a number.
        denominator: Broadcasts with the numerator. The repair costs its size, not the quotient's.
        floor: Raise it where quotients by very small numbers are noise, or overflow: the slope in b is a/b².

    Example:
        >>> b = torch.tensor([0.0, 2.0], requires_grad=True)
        >>> torch.autograd.grad(safe_divide(1.0, b).sum(), b)
        (tensor([-0.0000, -0.2500]),)
    """
    if isinstance(numerator, Tensor):
        numerator = floating(numerator)
        if not denominator.is_floating_point() and not denominator.is_complex():  # a count
            denominator = denominator.to(numerator.dtype)
    else:
        denominator = floating(denominator)
        numerator = denominator.new_full((), numerator)
    floor = representable_floor(floor, denominator.dtype)
    quotient: Tensor = _Divide.apply(numerator, denominator, floor)  # type: ignore[no-untyped-call]
    return quotient


def infinite_at_zero(x: Tensor, floor: float) -> Tensor:
    """x, but ±inf where |x| ≤ floor: something safe to divide by. Carries no gradient.

    Three vectorised kernels; a comparison and `torch.where` take three times as long.
    """
    return torch.threshold_(x.abs(), floor, math.inf).copysign_(x)


class _Divide(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, floor: float) -> Tensor:
        divisor = infinite_at_zero(b, floor)
        quotient = a / divisor
        ctx.save_for_backward(b, divisor, quotient)
        ctx.floor, ctx.shape = floor, a.shape
        return quotient

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        b, divisor, quotient = ctx.saved_tensors
        # Where a second derivative is wanted, the kept divisor will not do: it is a constant.
        slope = safe_divide(grad, b, floor=ctx.floor) if torch.is_grad_enabled() else grad / divisor
        to_b = (slope * quotient).neg_() if ctx.needs_input_grad[1] else None
        if slope.shape != b.shape and to_b is not None:
            to_b = to_b.sum_to_size(b.shape)
        return slope if slope.shape == ctx.shape else slope.sum_to_size(ctx.shape), to_b, None


def xlogx(x: Tensor) -> Tensor:
    """x·log x, with 0·log 0 = 0; the slope log x + 1 stops at log(tiny) = -87.3 (float32) instead of -Inf.

    `x * x.log()` is 0 · -Inf = NaN at 0; `torch.xlogy(x, x)` has the right value there and a NaN slope. Below the
    smallest normal number the function continues as the straight line x·log(tiny): the slope keeps its sign, so the
    entropy of a one-hot distribution still pushes its zeros up.

    Example:
        >>> p = torch.tensor([0.0, 1.0], requires_grad=True)
        >>> torch.autograd.grad(xlogx(p).sum(), p)
        (tensor([-87.3365,   1.0000]),)
    """
    return x * safe_log(x)


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
    angle: Tensor = _Arc.apply(x, -1)  # type: ignore[no-untyped-call]
    return angle


def safe_asin(x: Tensor) -> Tensor:
    """asin(clamp(x, -1, 1)), exact everywhere; the slope 1/√(1-x²) is 0 at ±1 and beyond. See `safe_acos`.

    Example:
        >>> x = torch.tensor([1.0, 0.0, -2.0], requires_grad=True)
        >>> torch.autograd.grad(safe_asin(x).sum(), x)
        (tensor([0., 1., 0.]),)
    """
    angle: Tensor = _Arc.apply(x, 1)  # type: ignore[no-untyped-call]
    return angle


def _slope(x: Tensor) -> Tensor:
    """1/√(1-x²), 0 where |x| ≥ 1. The product (1-x)(1+x) keeps the digits that 1-x² loses near ±1."""
    return F.threshold((1 - x) * (1 + x), 0.0, math.inf).rsqrt()


class _Arc(torch.autograd.Function):
    """asin, or with the sign -1 acos: their slopes differ in the sign alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sign: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.sign = sign
        within = x.clamp(-1, 1)
        return within.asin_() if sign > 0 else within.acos_()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * (ctx.sign * _slope(x)), None
