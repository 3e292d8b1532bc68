"""safetensors: eight bytes of length, a JSON header, then the tensors. No code, and no checksum either."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

from nantrap.checkpoints.audit.contents import DTYPES, Contents, DType, Extent, StoredTensor, UnreadableError, row_major
from nantrap.checkpoints.audit.files import ByteSource
from nantrap.checkpoints.audit.verdict import CheckpointProblem, checkpoint_problem
from nantrap.incident.wording import escaped

_LENGTH = struct.Struct("<Q")
_MAX_HEADER = 100_000_000  # the format's own limit
_MAX_READ = 32 << 20
"""A longer header would take more memory than an audit may; 300,000 tensors fit."""

_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "C32": "complex32", "C64": "complex64", "C128": "complex128", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "BOOL": "bool",
}  # fmt: skip
_PACKED = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
"""Bits of the floats that share bytes. They have neither NaN nor Inf."""


def recognise(head: bytes) -> bool:
    """A small number in eight bytes, then an opening brace."""
    return len(head) > 8 and head[8:9] == b"{" and 2 <= _LENGTH.unpack(head[:8])[0] <= _MAX_HEADER


def read(source: ByteSource) -> Contents:
    """Where everything lies in the file. Tensors before the cut are still read."""
    length = _LENGTH.unpack(source.read(0, 8))[0]
    if length > _MAX_READ:
        raise UnreadableError("NT912", f"the header holds {length:,} bytes; more than {_MAX_READ:,} are not read")
    text = source.read(8, length)
    if len(text) < length:
        raise UnreadableError("NT909", f"the header should hold {length:,} bytes, and the file has {len(text):,}")
    try:
        header = json.loads(text, object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as error:
        raise UnreadableError("NT908", f"the header is not JSON: {escaped(str(error))}") from error
    if not isinstance(header, dict):
        raise UnreadableError("NT908", "the header is not a JSON object")
    metadata = header.pop("__metadata__", None)
    base, extents, ranges, problems = 8 + length, [], [], []
    for name, entry in header.items():
        first, last, tensor, dtype = _entry(name, entry)
        ranges.append((first, last, name))
        if tensor is None and dtype not in _PACKED:
            words = f"{escaped(name)} has the dtype {escaped(dtype, most=40)}, which is not known here: it was not read"
            problems.append(checkpoint_problem("NT912", words, severity="warning", tensor=name))
        if base + last <= source.size:
            tensors = (tensor,) if tensor else ()
            extents.append(Extent(source, base + first, last - first, name, tensors))
    end = max((last for _, last, _ in ranges), default=0)
    problems += _layout_problems(ranges)
    problems += _size_problems(base + end, source.size, missing=len(header) - len(extents))
    return Contents(
        format="safetensors",
        extents=tuple(sorted(extents, key=lambda extent: extent.offset)),
        names=tuple(header),
        tree={"metadata": metadata} if isinstance(metadata, dict) else None,
        problems=tuple(problems),
    )


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object in which every name appears once: readers differ in which of two they take."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name appears twice in it")
    return found


def _entry(name: str, entry: object) -> tuple[int, int, StoredTensor | None, str]:
    """Begin, end, tensor and dtype of one entry of the header; no tensor for a dtype that cannot be read."""
    label = escaped(name)
    try:
        assert isinstance(entry, dict)
        kind, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
        first, last = (int(offset) for offset in entry["data_offsets"])
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise UnreadableError(
            "NT908", f"the header describes tensor {label} wrongly: {escaped(repr(error))}"
        ) from error
    dtype: DType | None = DTYPES.get(_DTYPES.get(kind, ""))
    if not (0 <= first <= last and len(shape) <= 64 and all(size >= 0 for size in shape)):
        raise UnreadableError("NT908", f"tensor {label} has an impossible shape or position")
    numel = math.prod(shape)
    if dtype is not None:
        expected = numel * dtype.itemsize
    else:
        expected = -(-numel * _PACKED[kind] // 8) if kind in _PACKED else last - first
    if expected != last - first:
        raise UnreadableError("NT908", f"tensor {label} has a shape that does not fit its {last - first:,} bytes")
    return first, last, StoredTensor((name,), dtype, shape, row_major(shape)) if dtype else None, kind


def _layout_problems(ranges: list[tuple[int, int, str]]) -> list[CheckpointProblem]:
    """Tensors follow one another without gaps and without sharing bytes: the format requires it."""
    end = 0
    for first, last, name in sorted(ranges):
        if first != end:
            what = "shares bytes with the tensor before it" if first < end else f"begins {first - end:,} bytes too late"
            return [checkpoint_problem("NT908", f"tensor {escaped(name)} {what}: the header was changed", tensor=name)]
        end = last
    return []


def _size_problems(expected: int, size: int, *, missing: int) -> tuple[CheckpointProblem, ...]:
    if size < expected:
        lost = f"{missing:,} tensors are" if missing != 1 else "1 tensor is"
        return (checkpoint_problem("NT909", f"the file holds {size:,} of {expected:,} bytes: {lost} not whole"),)
    if size > expected:
        return (checkpoint_problem("NT908", f"{size - expected:,} bytes follow after the last tensor"),)
    return ()
