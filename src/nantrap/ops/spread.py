"""Variance and standard deviation of groups that may be constant, hold one element, or none."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from nantrap.ops.masks import reduced_dims
from nantrap.ops.norms import safe_norm, scaled_norm
from nantrap.ops.precision import widen


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
