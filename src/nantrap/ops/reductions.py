"""Mean and mean squared error over the kept values, also when there are none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nantrap.ops.masks import as_mask, count_kept, reduced_dims
from nantrap.ops.precision import wide_dtype, widen


def masked_mean(x: Tensor, mask: Tensor, dim: int | Sequence[int] | None = None, *, keepdim: bool = False) -> Tensor:
    """Σ_kept x / max(number kept, 1); over nothing it is 0 with gradient 0.

    `(x * mask).sum() / mask.sum()` is 0/0 over nothing, and NaN · 0 = NaN: a product does not remove a masked NaN, a
    selection does. An epsilon in the denominator changes every mean, and 1e-8 is 0 in float16. Sums of half precision
    are taken in float32; a mean always fits its dtype, so it comes back in it.

    Args:
        x: Any shape, floating point.
        mask: True keeps; broadcasts to `x`. Positions are counted after broadcasting.
        dim: The dimension or dimensions to reduce; all of them by default.
        keepdim: Keep the reduced dimensions with size 1.

    Example:
        >>> x = torch.tensor([[1.0, 3.0, torch.nan], [torch.nan, 7.0, 8.0]])
        >>> masked_mean(x, torch.tensor([[True, True, False], [False, False, False]]), dim=1)
        tensor([2., 0.])
    """
    return _mean(x, mask, dim, keepdim).to(x.dtype)


def masked_mse(
    prediction: Tensor,
    target: Tensor,
    mask: Tensor,
    dim: int | Sequence[int] | None = None,
    *,
    keepdim: bool = False,
) -> Tensor:
    """Σ_kept (prediction - target)² / max(number kept, 1); over nothing it is 0 with gradient 0.

    As `masked_mean`, but the result of half precision is float32: the square of a difference of 256 does not fit
    float16. What is masked may be NaN or Inf, on either side.

    Example:
        >>> masked_mse(torch.tensor([1.0, torch.nan]), torch.zeros(2), torch.tensor([True, False]))
        tensor(1.)
    """
    difference = torch.where(as_mask(mask), widen(prediction) - widen(target), 0.0)
    dims = reduced_dims(dim, difference.dim())
    count = count_kept(as_mask(mask), difference.shape, dims).clamp(min=1)
    mean = _sum(difference.square(), dims) / count
    return mean if keepdim else mean.squeeze(dims)


def _mean(x: Tensor, mask: Tensor, dim: int | Sequence[int] | None, keepdim: bool) -> Tensor:
    kept = torch.where(as_mask(mask), x, 0.0)
    dims = reduced_dims(dim, kept.dim())
    mean = _sum(kept, dims) / count_kept(as_mask(mask), kept.shape, dims).clamp(min=1)
    return mean if keepdim else mean.squeeze(dims)


def _sum(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    # torch sums over everything when it is given no dimension: the mean of a scalar is the scalar
    return x.sum(dims, keepdim=True, dtype=wide_dtype(x.dtype)) if dims else x
