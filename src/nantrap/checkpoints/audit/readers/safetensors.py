"""safetensors: eight bytes of length, a JSON header, then the tensors. No code, and no checksum either."""

from __future__ import annotations

import json
import math
import struct

import torch

from nantrap.checkpoints.audit.contents import Contents, Extent, StoredTensor, UnreadableError, row_major
from nantrap.checkpoints.audit.source import Source
from nantrap.checkpoints.audit.verdict import Problem

_LENGTH = struct.Struct("<Q")
_MAX_HEADER = 100_000_000  # the format's own limit

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.int64, "U32": torch.int32, "U16": torch.int16, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def recognise(head: bytes) -> bool:
    """A small number in eight bytes, then an opening brace."""
    return len(head) > 8 and head[8:9] == b"{" and 2 <= _LENGTH.unpack(head[:8])[0] <= _MAX_HEADER


def read(source: Source) -> Contents:
    """Where everything lies in the file. Tensors in front of a cut are still read."""
    length = _LENGTH.unpack(source.read(0, 8))[0]
    text = source.read(8, length)
    if len(text) < length:
        raise UnreadableError("NT909", f"the header should hold {length:,} bytes, and the file has {len(text):,}")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableError("NT908", f"the header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise UnreadableError("NT908", "the header is no JSON object")
    metadata = header.pop("__metadata__", None)
    base, extents, end = 8 + length, [], 0
    for name, entry in header.items():
        first, last, tensor = _entry(name, entry)
        end = max(end, last)
        if base + last <= source.size:
            tensors = (tensor,) if tensor else ()
            extents.append(Extent(source, base + first, last - first, name, tensors))
    return Contents(
        format="safetensors",
        extents=tuple(sorted(extents, key=lambda extent: extent.offset)),
        names=tuple(header),
        tree={"metadata": metadata} if isinstance(metadata, dict) else None,
        problems=_size_problems(base + end, source.size, missing=len(header) - len(extents)),
    )


def _entry(name: str, entry: object) -> tuple[int, int, StoredTensor | None]:
    """Begin, end and tensor of one entry of the header; no tensor for a dtype that cannot be looked into."""
    try:
        assert isinstance(entry, dict)
        dtype, shape = _DTYPES.get(entry["dtype"]), tuple(int(size) for size in entry["shape"])
        first, last = (int(offset) for offset in entry["data_offsets"])
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise UnreadableError("NT908", f"the header describes tensor {name} wrongly: {error!r}") from error
    size_is_right = dtype is None or math.prod(shape) * dtype.itemsize == last - first
    if not (0 <= first <= last and all(size >= 0 for size in shape) and size_is_right):
        raise UnreadableError("NT908", f"tensor {name} has a shape that does not fit its {last - first:,} bytes")
    return first, last, StoredTensor((name,), dtype, shape, row_major(shape)) if dtype else None


def _size_problems(expected: int, size: int, *, missing: int) -> tuple[Problem, ...]:
    if size < expected:
        lost = f"{missing:,} tensors are" if missing != 1 else "1 tensor is"
        return (Problem("NT909", f"the file holds {size:,} of {expected:,} bytes: {lost} not whole"),)
    if size > expected:
        return (Problem("NT908", f"{size - expected:,} bytes follow behind the last tensor"),)
    return ()
