"""Exact statistics of one tensor. It may be slow: it runs only after an alarm."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nantrap.finite.kinds import plain_values, readable
from nantrap.finite.torch_private import stored_values
from nantrap.incident import TensorStats

_CHUNK = 1 << 22
"""Values read together: bounds the temporary memory to some tens of megabytes however large the tensor is."""


def dtype_name(dtype: torch.dtype) -> str:
    """`float16` for `torch.float16`."""
    return str(dtype).removeprefix("torch.")


def limit_of(dtype: torch.dtype) -> float:
    """The largest finite value of a floating-point dtype (of the real part for complex ones)."""
    return float(torch.finfo(dtype).max)


def tensor_stats(tensor: Tensor) -> TensorStats:
    """Count NaN, +Inf, -Inf and zeros exactly; min, max, mean and absmax of the finite part, in float64.

    A complex number counts once for each part that is bad, and its `shape` is the tensor's own.
    """
    shape, name = () if tensor.is_nested else tuple(tensor.shape), dtype_name(tensor.dtype)
    values = plain_values(tensor)
    if values is None:
        return TensorStats(shape=shape, dtype=name, numel=tensor.numel())
    if not (values.is_floating_point() or values.is_complex()):
        return _integer_stats(values, shape, name)
    dense = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    counts = [0, 0, 0, 0]
    low, high, total, finite_count = math.inf, -math.inf, 0.0, 0
    for chunk in torch.split(dense.reshape(-1), _CHUNK):
        finite = chunk.isfinite()
        good = chunk[finite]
        summary = torch.stack(
            [
                chunk.isnan().sum(),
                chunk.isposinf().sum(),
                chunk.isneginf().sum(),
                (chunk == 0).sum(),
            ]
        ).tolist()
        counts = [a + int(b) for a, b in zip(counts, summary, strict=True)]
        if good.numel():
            chunk_low, chunk_high = torch.aminmax(good)
            low, high = min(low, float(chunk_low)), max(high, float(chunk_high))
            total += float(good.sum(dtype=torch.float64))
            finite_count += good.numel()
    absmax = max(abs(low), abs(high)) if finite_count else None
    return TensorStats(
        shape=shape,
        dtype=name,
        numel=dense.numel(),
        nan=counts[0],
        posinf=counts[1],
        neginf=counts[2],
        zeros=counts[3],
        min=low if finite_count else None,
        max=high if finite_count else None,
        mean=total / finite_count if finite_count else None,
        absmax=absmax,
        headroom_bits=headroom_bits(absmax, values.dtype if tensor.is_quantized else tensor.dtype),
    )


def headroom_bits(absmax: float | None, dtype: torch.dtype) -> float | None:
    """How many doublings are left before `absmax` overflows `dtype`; `None` where it makes no sense."""
    if absmax is None or absmax == 0 or not (dtype.is_floating_point or dtype.is_complex):
        return None
    return round(math.log2(limit_of(dtype)) - math.log2(absmax), 3)


def first_nonfinite_index(tensor: Tensor) -> tuple[int, ...] | None:
    """Index of the first non-finite value in row-major order, or `None`."""
    if tensor.layout in _SPARSE:  # the place in the tensor, not among the stored values
        stored = torch.Tensor.to_sparse(tensor.detach()).coalesce()
        within = first_nonfinite_index(stored.values())
        return None if within is None else (*stored.indices()[:, within[0]].tolist(), *within[1:])
    dense = readable(tensor)
    if dense is None:
        return None
    bad = (~dense.isfinite()).reshape(-1)
    if not bool(bad.any()):
        return None
    position = int(bad.to(torch.uint8).argmax())
    index = []
    for size in reversed(dense.shape):
        index.append(position % size)
        position //= size
    return tuple(reversed(index))[: max(tensor.dim(), 1)]


def _integer_stats(tensor: Tensor, shape: tuple[int, ...], name: str) -> TensorStats:
    """The statistics of numbers that cannot be NaN or Inf."""
    values = tensor.detach().to(torch.int64)
    low, high = (int(value) for value in torch.aminmax(values))
    return TensorStats(
        shape=shape,
        dtype=name,
        numel=tensor.numel(),
        zeros=int((values == 0).sum()),
        min=float(low),
        max=float(high),
        mean=float(values.to(torch.float64).mean()),
        absmax=float(max(abs(low), abs(high))),
    )


_PAYLOAD = {
    torch.float32: (torch.int32, 0x003FFFFF),
    torch.float64: (torch.int64, 0x0007FFFFFFFFFFFF),
    torch.float16: (torch.int16, 0x01FF),
    torch.bfloat16: (torch.int16, 0x003F),
}
"""The bits of a NaN below its quiet bit: arithmetic of a CPU leaves them 0 and of a GPU sets them all, without a
sign, unless it passes on a NaN that has others."""


def has_nan_payload(tensor: Tensor) -> bool:
    """Whether any NaN carries bits that no arithmetic writes: those of a number whose exponent was overwritten."""
    entry = _PAYLOAD.get(tensor.dtype)
    values = tensor.detach()[tensor.detach().isnan()]
    if entry is None or not values.numel():
        return False
    kind, mask = entry
    payload = values.contiguous().view(kind) & mask
    of_gpu = (payload == mask) & ~values.signbit()
    return bool(((payload != 0) & ~of_gpu).any())


def size_in_bytes(tensor: Tensor) -> int:
    """The memory that a tensor takes, of any layout: a sparse one has its stored values and their places."""
    if tensor.layout not in _SPARSE:
        return tensor.nbytes
    stored = stored_values(tensor) if tensor.layout == torch.sparse_coo else tensor.values()
    places = tensor.sparse_dim() if tensor.layout == torch.sparse_coo else 1
    return stored.nbytes + 8 * places * stored.shape[0]


_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
