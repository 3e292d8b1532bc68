"""The 2-norm, the RMS norm, variance and standard deviation: no overflow of the squares, no 0/0 at the origin.

A group may be constant, hold one element, or none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nantrap.ops.masked import reduced_dims
from nantrap.ops.precision import smallest_normal, widen


def safe_norm(x: Tensor, dim: int | Sequence[int] | None = None, *, keepdim: bool = False) -> Tensor:
    """‖x‖₂ = m·‖x/m‖₂ with m = max|x|; its slope x/‖x‖ is 0 at the origin.

    The square of 2e19 is Inf in float32 (of 256 in float16) and that of 1e-23 is 0, though the norm fits both times:
    dividing by the largest magnitude first keeps every square between 0 and 1. At the origin the slope is 0/0;
    0 is its smallest subgradient, the one `torch.linalg.vector_norm` takes too, and `x.square().sum().sqrt()` does not.
    An Inf among the values gives an Inf norm.

    Args:
        x: Any shape, floating point. Half precision is computed in float32 and comes back in half precision.
        dim: The dimension or dimensions to reduce; all of them by default.
        keepdim: Keep the reduced dimensions with size 1.

    Example:
        >>> safe_norm(torch.tensor([3e30, 4e30]))
        tensor(5.0000e+30)
        >>> x = torch.zeros(2, requires_grad=True)
        >>> torch.autograd.grad(safe_norm(x), x)
        (tensor([0., 0.]),)
    """
    dims = reduced_dims(dim, x.dim())
    if x.numel() == 0:
        empty: Tensor = torch.linalg.vector_norm(x, dim=dims, keepdim=keepdim)
        return empty
    norm = scaled_norm(widen(x), dims, 1.0).to(x.dtype)
    return norm if keepdim else norm.squeeze(dims)


def scaled_norm(x: Tensor, dims: tuple[int, ...], factor: float) -> Tensor:
    """factor·‖x‖₂ with the reduced dimensions kept; finite where only the norm without its factor would overflow."""
    norm: Tensor = _Norm.apply(x, dims, factor)  # type: ignore[no-untyped-call]
    return norm


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: tuple[int, ...], factor: float) -> Tensor:
        peak = x.abs().amax(dims, keepdim=True)
        peak = torch.threshold_(peak, 0.0, 1.0).clamp_(max=torch.finfo(x.dtype).max)  # 0/0 and inf/inf would be NaN
        norm: Tensor = torch.linalg.vector_norm(x / peak, dim=dims, keepdim=True).mul_(factor).mul_(peak)
        ctx.save_for_backward(x, norm)
        ctx.factor = factor
        return norm

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        x, norm = ctx.saved_tensors
        # f·x/‖x‖ = f²·x/(f‖x‖). First the quotient, which is at most 1/f: g/‖x‖ would overflow for a subnormal norm.
        return x / F.threshold(norm, 0.0, math.inf) * (grad * ctx.factor**2), None, None


def rms_norm(x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6) -> Tensor:
    """x / √(mean(x²) + ε) · weight over the last dimension.

    The usual form squares x, which is Inf above 255 in float16 and above 1.8e19 in float32 (the output is then a
    silent 0), and its slope at a zero row is 1/√ε: 1e10 for ε = 1e-20, Inf in float16. Here the root is
    hypot(‖x‖/√d, √ε) with a norm that cannot overflow, in float32 at least, and ε is never so small that 1/√ε does
    not fit the dtype.

    Args:
        x: [..., d]; the result has its dtype.
        weight: [d], or none.
        eps: Added to the mean square. Raised where the dtype cannot hold its slope.

    Example:
        >>> rms_norm(torch.tensor([[300.0, -300.0], [0.0, 0.0]], dtype=torch.float16))
        tensor([[ 1., -1.],
                [ 0.,  0.]], dtype=torch.float16)
    """
    if x.numel() == 0:
        return x
    wide = widen(x)
    # 1/√ε must fit the dtype it comes back in, and 1/ε, which second derivatives need, the one it is computed in.
    smallest_root = max(2 / torch.finfo(x.dtype).max, math.sqrt(smallest_normal(wide.dtype)))
    normed: Tensor = _RMSNorm.apply(wide, max(math.sqrt(eps), smallest_root))  # type: ignore[no-untyped-call]
    return (normed if weight is None else normed * weight).to(x.dtype)


def _root_mean_square(x: Tensor, root_eps: float) -> Tensor:
    """√(mean(x²) + ε) of each row, at least √ε, without a square."""
    rms = scaled_norm(x, (x.dim() - 1,), 1 / math.sqrt(x.shape[-1]))
    return torch.hypot(rms, rms.new_full((), root_eps))


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, root_eps: float) -> Tensor:
        root = _root_mean_square(x, root_eps)
        normed = x / root
        ctx.save_for_backward(x, normed, root)
        ctx.root_eps = root_eps
        return normed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, normed, root = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted, and the kept root is a constant
            root = _root_mean_square(x, ctx.root_eps)
        # (g - y·mean(g·y)) / root: y is of the order of 1, while x times g may overflow
        return (grad - normed * (grad * normed).mean(-1, keepdim=True)) / root, None


class RMSNorm(nn.Module):
    """`rms_norm` with a learned weight, a drop-in for `torch.nn.RMSNorm` over the last dimension.

    Example:
        >>> RMSNorm(4)(torch.zeros(2, 4)).abs().sum().item()
        0.0
    """

    def __init__(self, dim: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, eps=self.eps)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


def safe_var(
    x: Tensor, dim: int | Sequence[int] | None = None, *, correction: int = 1, keepdim: bool = False
) -> Tensor:
    """Σ(x - mean)² / (n - correction), and 0 with slope 0 for a group of `correction` elements or fewer.

    The unbiased variance of a single element is 0/0: the last batch of an epoch, a GRPO group of one answer. A group
    that small says nothing about its spread, and 0 is what the biased variance says.

    Args:
        x: Any shape, floating point; the result has its dtype, the sums are taken in float32 at least.
        dim: The dimension or dimensions of a group; all of them by default.
        correction: 1 for the unbiased estimate, 0 for the mean square deviation.
        keepdim: Keep the reduced dimensions with size 1.

    Example:
        >>> safe_var(torch.tensor([[5.0], [7.0]]), dim=1)
        tensor([0., 0.])
    """
    dims, centred, freedom = _centre(x, dim, correction)
    return (centred.square().sum(dims, keepdim=keepdim) / freedom).to(x.dtype)


def safe_std(
    x: Tensor, dim: int | Sequence[int] | None = None, *, correction: int = 1, keepdim: bool = False
) -> Tensor:
    """√`safe_var`, and its slope is 0 for a constant group, where √ has an infinite one.

    Computed as ‖x - mean‖ / √(n - correction) as in `safe_norm`, so deviations of 1e20 (float32) do not overflow on the
    way. Dividing by it still needs `safe_divide`, or an epsilon: the spread of a constant group is truly 0.

    Example:
        >>> x = torch.ones(3, requires_grad=True)
        >>> torch.autograd.grad(safe_std(x), x)
        (tensor([0., 0., 0.]),)
    """
    dims, centred, freedom = _centre(x, dim, correction)
    if centred.numel() == 0:
        return safe_norm(x, dims, keepdim=keepdim)
    std = scaled_norm(centred, dims, 1 / math.sqrt(freedom)).to(x.dtype)
    return std if keepdim else std.squeeze(dims)


def _centre(x: Tensor, dim: int | Sequence[int] | None, correction: int) -> tuple[tuple[int, ...], Tensor, int]:
    """The reduced dimensions, x - mean, and the degrees of freedom (1 where there are none: nothing to divide)."""
    dims = reduced_dims(dim, x.dim())
    size = math.prod([x.shape[d] for d in dims])
    moved = widen(x)
    if size:
        # Measured from the group's first value, which changes no spread: a constant group is then exactly 0, where
        # the rounding of its mean would leave a spread of 1e-9 with a slope of noise.
        first = moved.detach()[tuple(slice(1) if d in dims else slice(None) for d in range(x.dim()))]
        moved = moved - first
        moved = moved - moved.mean(dims, keepdim=True) if dims else moved
    return dims, moved, max(size - correction, 1)
