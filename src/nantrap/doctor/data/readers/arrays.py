"""Files of arrays: .npy, .npz, .pt, safetensors and HDF5. Fields are read one by one, in pieces of rows.

An array is read straight from its bytes where they are contiguous and not compressed, so a file larger than memory
needs one buffer per worker. The rest (Fortran order, odd strides, lists of small tensors) is read whole.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nantrap.doctor.data.measures import Measures, joined, measure, thinned
from nantrap.doctor.data.roles import DataOptions, role_of
from nantrap.doctor.data.rows import Array, Block, Rows, ValueKind, digest
from nantrap.doctor.data.shards import CHANGED, DataProblem, Plan, Scanned, Shard, UnreadableDataError

_PIECE = 4 << 20
"""Bytes read and measured together: within the second-level cache or near it."""
_SHARD = 64 << 20
"""Bytes of one piece of work."""
_LONG = 1 << 20
"""Samples of a field beyond which not every number per sample is kept."""
_BUFFERS = threading.local()


@dataclass(frozen=True, slots=True)
class ArrayField:
    """One array of a file.

    Attributes:
        name: its key; `None` if it is the only one.
        dtype: numpy's; 16-bit floats are read as `uint16`.
        kind: what its values are.
        shape: the whole shape, samples first.
        read: the rows from a start to a stop.
        bytes: how much there is to read.
        whole: it can only be read whole, so it is one shard.
        samples: a list of arrays that differ in shape, each of them a sample, instead of one array.
    """

    name: str | None
    dtype: np.dtype[Any]
    kind: ValueKind
    shape: tuple[int, ...]
    read: Callable[[int, int], Array]
    bytes: int
    whole: bool = False
    samples: Callable[[], list[Array | float | int | None]] | None = None


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """An open file of arrays, what of it could not be read, and what is worth knowing about it."""

    fields: tuple[ArrayField, ...]
    problems: tuple[DataProblem, ...] = ()
    notes: tuple[str, ...] = ()
    changed: Callable[[], bool] = lambda: False

    def field(self, name: str | None) -> ArrayField:
        """The field of this name."""
        for each in self.fields:
            if each.name == name:
                return each
        raise UnreadableDataError(f"{name} is gone: the file changed while it was read")


Opener = Callable[[str], contextlib.AbstractContextManager[ArrayFile]]


def plan(path: str, format: str, opener: Opener) -> Plan:
    """Cut every array into shards of about 64 MB."""
    with opener(path) as file:
        shards = []
        shapes = {}
        for each in file.fields:
            count = each.shape[0] if each.shape else 1
            if each.samples is None:
                shapes[each.name] = tuple(each.shape[1:])
            rows = count if each.whole or each.samples else max(1, _SHARD // max(1, each.bytes // max(1, count)))
            for start in range(0, max(count, 1), max(rows, 1)):
                stop = min(count, start + rows)
                size = each.bytes * (stop - start) // max(1, count)
                shards.append(Shard(path, format, each.name, start, stop, bytes=size))
        return Plan(tuple(shards), shapes, file.problems, file.notes)


def scan(shard: Shard, options: DataOptions, opener: Opener) -> Scanned:
    """Measure some rows of one array."""
    made = Scanned()
    stem = os.path.basename(shard.path).partition(".")[0]
    with opener(shard.path) as file:
        each = file.field(shard.field)
        lone = len(file.fields) == 1
        try:
            if each.samples is not None:
                made.measures = _scan_list(each, each.samples(), options, stem)
            else:
                made.measures = _scan_rows(each, shard, options, stem, lone=lone)
        except UnreadableDataError as error:
            made.problems.append(DataProblem(str(error), shard.field))
        if file.changed():
            made.problems.append(DataProblem(CHANGED))
    return made


def digests(path: str, field: str | None, indices: Array, opener: Opener) -> Array:
    """Digests of whole samples, for the comparison of samples whose marks are equal."""
    made = np.empty(len(indices), dtype=np.uint64)
    with opener(path) as file:
        each = file.field(field)
        position = 0
        while position < len(indices):
            last = position  # neighbours are read together: a constant field asks for every row
            while last + 1 < len(indices) and indices[last + 1] == indices[last] + 1 and last - position < 4096:
                last += 1
            rows = each.read(int(indices[position]), int(indices[last]) + 1)
            for offset, row in enumerate(rows):
                made[position + offset] = digest(row)
            position = last + 1
    return made


def _scan_rows(each: ArrayField, shard: Shard, options: DataOptions, stem: str, *, lone: bool) -> list[Measures]:
    """The measures of a shard of one field, read in pieces."""
    sample = tuple(each.shape[1:])
    width = max(1, math.prod(sample) * each.dtype.itemsize)
    rows = max(1, _PIECE // width)
    if each.kind == "other":
        return [Measures(each.name, role_of(each.name or stem, options), "other", rows=shard.stop - shard.start)]
    parts = []
    for start in range(shard.start, shard.stop, rows):
        stop = min(shard.stop, start + rows)
        block = Block(
            each.name,
            each.kind,
            Rows.of_array(each.read(start, stop)),
            np.arange(start, stop),
            shape=sample,
            exact=False,
            lone=lone,
        )
        parts.append(measure(block, options, file_stem=stem))
    if not parts:
        return [Measures(each.name, role_of(each.name or stem, options), each.kind)]
    whole = joined(parts)
    return [thinned(whole) if each.shape[0] > _LONG else whole]


def _scan_list(each: ArrayField, samples: list[Any], options: DataOptions, stem: str) -> list[Measures]:
    from nantrap.doctor.data.readers.records import blocks_of_column

    blocks = blocks_of_column(each.name, list(enumerate(samples)), table=False)
    return [measure(block, options, file_stem=stem) for block in blocks]


def kind_of(dtype: np.dtype[Any], sample: tuple[int, ...]) -> tuple[np.dtype[Any], ValueKind]:
    """How values of this dtype are read, and what they are."""
    if dtype.kind == "f":
        return (np.dtype(np.uint16), "half") if dtype.itemsize == 2 else (dtype, "float")
    if dtype.kind == "c":
        return dtype, "float"
    if dtype.kind == "b":
        return dtype, "bool"
    if dtype.kind in "iu":
        return dtype, "image" if dtype == np.uint8 and len(sample) >= 2 else "int"
    return dtype, "other"


def direct_field(
    name: str | None, source: Any, *, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...], bfloat16: bool = False
) -> ArrayField:
    """An array whose bytes are contiguous in a file."""
    used, kind = kind_of(dtype, shape[1:])
    if bfloat16:
        used, kind = np.dtype(np.uint16), "bfloat16"
    raw = used.newbyteorder(dtype.byteorder) if used.itemsize == dtype.itemsize and used.kind == "u" else used
    full = shape or (1,)
    row = math.prod(full[1:]) * used.itemsize

    def read(start: int, stop: int) -> Array:
        size = (stop - start) * row
        buffer = _buffer(size)
        got = source.read_into(offset + start * row, buffer)
        if got < size:
            raise UnreadableDataError(f"the file is cut: {size - got:,} bytes are missing from sample {start:,} on")
        array = np.frombuffer(buffer, dtype=raw).reshape(stop - start, *full[1:])
        return native(array)

    return ArrayField(name, used, kind, full, read, math.prod(full) * used.itemsize)


def native(array: Array) -> Array:
    """In the byte order of this machine, complex numbers as pairs, long doubles as doubles."""
    if array.dtype.kind == "c":
        wide = array.astype(array.dtype.newbyteorder("="))
        return wide.view(wide.real.dtype).reshape(array.shape[0], -1)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def memory_field(
    name: str | None, load: Callable[[], Array], *, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> ArrayField:
    """An array that can only be read whole."""
    used, kind = kind_of(dtype, shape[1:])
    full = shape or (1,)
    kept: list[Array] = []

    def read(start: int, stop: int) -> Array:
        if not kept:
            kept.append(native(np.ascontiguousarray(load()).reshape(full)))
        array = kept[0][start:stop]
        return array.view(np.uint16) if kind == "half" else array

    return ArrayField(name, used, kind, full, read, math.prod(full) * dtype.itemsize, whole=True)


def _buffer(size: int) -> memoryview:
    """A buffer of this thread, used again for the next piece: nothing measured keeps a view of it."""
    held: bytearray | None = getattr(_BUFFERS, "held", None)
    if held is None or len(held) < size:
        held = bytearray(max(size, _PIECE))
        _BUFFERS.held = held
    return memoryview(held)[:size]
