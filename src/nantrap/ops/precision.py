"""In which precision an operation computes: float32 at least, whatever it was given.

Half precision keeps 8 or 11 bits and float16 ends at 65,504, so sums, squares and exponentials of half-precision
tensors are taken in float32. Whether the result comes back in half precision depends on whether it must fit: a
mean of float16 values always does, a mean of their squares does not.
"""

from __future__ import annotations

import torch
from torch import Tensor

_HALF = (torch.float16, torch.bfloat16)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for float16 and bfloat16, else the dtype itself."""
    return torch.float32 if dtype in _HALF else dtype


def widen(x: Tensor) -> Tensor:
    """The tensor in `wide_dtype`: a copy for half precision, else the tensor itself."""
    return x.to(wide_dtype(x.dtype))


def floating(x: Tensor) -> Tensor:
    """A count as a floating-point number, which torch's own functions make of it too; any other tensor itself."""
    return x if x.is_floating_point() or x.is_complex() else x.to(torch.get_default_dtype())


def smallest_normal(dtype: torch.dtype) -> float:
    """The smallest positive number with full precision: 1.2e-38 in float32, 6.1e-5 in float16."""
    return torch.finfo(dtype).tiny


def representable_floor(floor: float | None, dtype: torch.dtype) -> float:
    """`floor`, raised to the smallest normal number: 1e-8 would be stored as 0 in float16 and protect nothing."""
    tiny = smallest_normal(dtype)
    return tiny if floor is None else max(floor, tiny)
