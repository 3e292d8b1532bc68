"""Tensors of every dtype, layout and class: where their values are, a copy of them, whether two hold the same.

PyTorch has few operations for many of them (float8, packed and quantised numbers, sparse, nested, masked and
distributed tensors, tensors around other tensors), and which ones depends on its version. No function here raises:
what cannot be read has no values that could be judged.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from nantrap.finite.torch_private import offsets_of_nested, stored_indices, stored_values

_ORDINARY = frozenset(
    {
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.uint8, torch.int8, torch.int16,
        torch.int32, torch.int64,
    }
)  # fmt: skip
_WIDE = frozenset(getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name))
"""Whole numbers that can be converted, and little else."""
_NO_NAN = frozenset(dtype for name in ("float4_e2m1fn_x2",) if (dtype := getattr(torch, name, None)) is not None)
"""Packed formats without a bit pattern for NaN or Inf."""
_BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)
_MOST_DENSE = 1 << 24
"""Values up to which a sparse tensor is made dense, for a rule to look at."""


def readable(tensor: Tensor) -> Tensor | None:
    """The plain dense floating-point tensor that holds this tensor's values, or `None` if it can hold no NaN."""
    try:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return None
        dense = plain_values(tensor)
        return torch.view_as_real(dense.resolve_conj()) if dense is not None and dense.is_complex() else dense
    except Exception:
        return None


def plain_values(tensor: Tensor) -> Tensor | None:
    """The values of a tensor of any dtype and layout in a plain dense one, with arithmetic; `None` if it holds none.

    Of a sparse tensor the stored ones, of a masked one those outside the mask, of a distributed one those of this rank.
    Integers stay integers.
    """
    try:
        tensor = tensor.detach()
        if type(tensor) is not Tensor:
            if hasattr(tensor, "to_local"):  # DTensor, without importing torch.distributed
                tensor = tensor.to_local()
            elif hasattr(tensor, "get_mask"):  # MaskedTensor
                masked: Any = tensor
                tensor = masked.to_tensor(0)
        if tensor.is_nested:
            tensor = tensor.values() if tensor.layout == torch.jagged else tensor.contiguous().values()
        if type(tensor) is not Tensor:  # torchao and others: tensors around tensors
            if hasattr(tensor, "__tensor_flatten__"):
                return _values_inside(tensor)
            if _is_wrapper(tensor):
                return None
            tensor = tensor.as_subclass(Tensor)
        if tensor.is_mkldnn or tensor.is_quantized:
            tensor = tensor.to_dense() if tensor.is_mkldnn else tensor.dequantize()
        elif tensor.layout == torch.sparse_coo:
            tensor = stored_values(tensor)
        elif tensor.layout != torch.strided:
            tensor = tensor.values().clone() if tensor.is_complex() else tensor.values()  # a view has no real parts
        if tensor.is_meta or tensor.numel() == 0 or tensor.dtype in _NO_NAN:
            return None
        if tensor.itemsize == 1 and tensor.is_floating_point():  # float8 has no arithmetic, and is exact in float32
            return tensor.to(torch.float32)
        if tensor.dtype in _WIDE:
            return tensor.to(torch.int64)
        return tensor if tensor.dtype in _ORDINARY or tensor.is_complex() else None
    except Exception:
        return None


def _values_inside(tensor: Any) -> Tensor | None:
    """The values of the tensors that a wrapper holds (codes, scales), joined, as far as they can hold a NaN."""
    names, _ = tensor.__tensor_flatten__()
    parts = [readable(part) for name in names if isinstance(part := getattr(tensor, name), Tensor)]
    dense = [part.reshape(-1).float() for part in parts if part is not None]
    return torch.cat(dense) if dense else None


def as_dense(tensor: Tensor) -> Tensor | None:
    """A tensor of any dtype and layout as a plain dense one of its own shape, with arithmetic. `None` where it has no
    such form: nested, on no device, packed, or sparse and very large. Of a distributed one, the part of this rank."""
    try:
        if tensor.is_nested or tensor.is_meta or _is_around_others(tensor):
            return None
        if tensor.layout != torch.strided:
            return tensor.detach().to_dense() if tensor.numel() <= _MOST_DENSE else None
        return plain_values(tensor) if tensor.numel() else tensor.detach()
    except Exception:
        return None


def is_ordinary(tensor: Tensor) -> bool:
    """Whether every operation takes it: dense, here, and of real numbers that have arithmetic."""
    return is_plain(tensor) and tensor.dtype in _ORDINARY


def is_plain(tensor: Tensor) -> bool:
    """Whether its memory is here and holds its numbers as they are: not sparse, nested, quantised or distributed."""
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_meta or hasattr(tensor, "to_local"):
        return False
    return not tensor.is_quantized and not _is_wrapper(tensor)


def _is_around_others(tensor: Tensor) -> bool:
    return type(tensor) is not Tensor and hasattr(tensor, "__tensor_flatten__") and not hasattr(tensor, "to_local")


def _is_wrapper(tensor: Tensor) -> bool:
    """Whether a tensor of a subclass has no values of its own: it holds other tensors, and computes with these."""
    if type(tensor) is Tensor or not tensor.numel():
        return False
    try:
        return tensor.untyped_storage().data_ptr() == 0
    except Exception:  # an own exception of its class is possible
        return True


# ---- copies, comparisons, writes


def copy_of(tensor: Tensor) -> Tensor | None:
    """A copy of a tensor without its graph; `None` where it cannot be copied."""
    try:
        return tensor.detach().clone()
    except Exception:
        return _copy_of_bytes(tensor)


def _copy_of_bytes(tensor: Tensor) -> Tensor | None:
    """A copy of plain memory whose numbers have no operations (`int4`, `bit`)."""
    try:
        return tensor.detach().view(torch.uint8).clone().view(tensor.dtype) if is_plain(tensor) else None
    except Exception:
        return None


def same_values(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same values, NaN at the same places included, as far as they can be compared."""
    try:
        if one.dtype != other.dtype or one.layout != other.layout:
            return False
        ours, theirs = parts_of(one), parts_of(other)
        if len(ours) != len(theirs) or any(a.shape != b.shape for a, b in zip(ours, theirs, strict=True)):
            return False
        return not any(bool(differs(a, b)) for a, b in zip(ours, theirs, strict=True))
    except Exception:
        return True


def differs(tensor: Tensor, copy: Tensor) -> Tensor:
    """1 if two plain tensors of one shape differ anywhere, else 0, on their device; NaN counts as equal to NaN."""
    tensor = tensor.detach()
    if tensor.dtype not in _ORDINARY and not (tensor.is_floating_point() or tensor.is_complex()):
        tensor, copy = tensor.view(torch.uint8), copy.view(torch.uint8)
    return ((tensor != copy) & ~((tensor != tensor) & (copy != copy))).any().float()


def parts_of(tensor: Any) -> list[Tensor]:
    """The plain tensors that hold all of a tensor here: values, places, codes. None of what has no memory."""
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if type(tensor) is not Tensor and hasattr(tensor, "__tensor_flatten__"):
        inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        return [part for each in inner if isinstance(each, Tensor) for part in parts_of(each)]
    if tensor.is_meta or _is_wrapper(tensor):
        return []
    if tensor.is_nested:
        return [tensor.contiguous().values(), offsets_of_nested(tensor)]
    if tensor.is_quantized:
        return [tensor.int_repr()]
    if tensor.is_mkldnn:
        return [tensor.to_dense()]
    if tensor.layout == torch.sparse_coo:
        return [stored_indices(tensor), stored_values(tensor)]
    if tensor.layout in _BY_ROWS:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout != torch.strided:
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


def write(target: Tensor, source: Tensor) -> bool:
    """Write the values of one tensor into another of its kind and shape. Returns whether that was possible in place."""
    try:
        if target.is_meta:
            return True
        if target.layout == torch.strided and not target.is_nested:
            for dim, stride in enumerate(target.stride()):
                if stride == 0:  # expanded: the same memory at all places
                    target, source = target.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
        if is_plain(target) and target.dtype not in _ORDINARY and not target.is_complex():
            target, source = target.view(torch.uint8), source.view(torch.uint8)
        with torch.inference_mode() if target.is_inference() else contextlib.nullcontext():
            target.copy_(source)
        return True
    except Exception:
        return False
