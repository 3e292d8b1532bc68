"""Files of arrays: .npy, .npz, .pt, safetensors and HDF5. Fields are read one by one, in pieces of rows.

An array is read straight from its bytes where they are contiguous and not compressed, so a file larger than memory
needs one buffer per worker. The rest (Fortran order, odd strides, lists of small tensors) is read whole.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nantrap.doctor.data.limits import MOST_FIELDS, MOST_SAMPLE, refuse_empty, refuse_size
from nantrap.doctor.data.measures import Measures, joined, measure, thinned
from nantrap.doctor.data.roles import DataOptions, role_of
from nantrap.doctor.data.rows import Array, Block, Rows, ValueKind, digest
from nantrap.doctor.data.shards import CHANGED, DataProblem, Plan, Scanned, Shard, UnreadableDataError
from nantrap.incident.wording import escaped, some_of

_PIECE = 4 << 20
"""Bytes read and measured together: within the second-level cache or near it."""
_SHARD = 64 << 20
"""Bytes of one piece of work."""
_SMALL = 1 << 16
_SEVERAL = 64
"""Arrays below 64 kB of a file with more than 64 arrays are read together."""
LONG = 1 << 20
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
        unjudged: the dtype of values that no rule reads.
    """

    name: str | None
    dtype: np.dtype[Any]
    kind: ValueKind
    shape: tuple[int, ...]
    read: Callable[[int, int], Array]
    bytes: int
    whole: bool = False
    samples: Callable[[], list[Array | float | int | None]] | None = None
    unjudged: str = ""


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """An open file of arrays, what of it could not be read, and what is worth knowing about it.

    `unread` is the number of arrays beyond the limit that the reader did not look at.
    """

    fields: tuple[ArrayField, ...]
    problems: tuple[DataProblem, ...] = ()
    notes: tuple[str, ...] = ()
    changed: Callable[[], bool] = lambda: False
    unread: int = 0
    _by_name: dict[str | None, ArrayField] = field(default_factory=dict)

    def field(self, name: str | None) -> ArrayField:
        """The field of this name."""
        if not self._by_name:
            self._by_name.update({each.name: each for each in reversed(self.fields)})
        if name in self._by_name:
            return self._by_name[name]
        raise UnreadableDataError(f"{name} is gone: the file changed while it was read")


Opener = Callable[[str], contextlib.AbstractContextManager[ArrayFile]]


def plan(path: str, format: str, opener: Opener) -> Plan:
    """Cut every array into shards of about 64 MB; small arrays are put together, since each shard opens the file."""
    with opener(path) as file:
        shards: list[Shard] = []
        small: list[ArrayField] = []
        shapes = {}
        problems = list(file.problems)
        for each in file.fields[:MOST_FIELDS]:
            count = each.shape[0] if each.shape else 1
            if each.samples is None:
                shapes[each.name] = tuple(each.shape[1:])
                try:
                    refuse_size(each.bytes // max(1, count), "a sample", MOST_SAMPLE)
                    refuse_empty(count, each.bytes)
                except UnreadableDataError as error:
                    problems.append(DataProblem(str(error), each.name))
                    continue
            if each.bytes < _SMALL and len(file.fields) > _SEVERAL:
                small.append(each)
                continue
            rows = count if each.whole or each.samples else max(1, _SHARD // max(1, each.bytes // max(1, count)))
            for start in range(0, max(count, 1), max(rows, 1)):
                stop = min(count, start + rows)
                size = each.bytes * (stop - start) // max(1, count)
                shards.append(Shard(path, format, each.name, start=start, stop=stop, bytes=size))
        if small:
            names = tuple(each.name for each in small)
            shards.append(Shard(path, format, fields=names, bytes=sum(each.bytes for each in small)))
        rest = len(file.fields[MOST_FIELDS:]) + file.unread
        if rest:
            problems.append(
                DataProblem(f"{rest:,} more entries were not read: at most {MOST_FIELDS:,} arrays of a file are")
            )
        return Plan(tuple(shards), shapes, tuple(problems), (*file.notes, *_unjudged(file)))


def _unjudged(file: ArrayFile) -> Iterator[str]:
    """Which arrays hold values that no rule reads. A clean result must not be taken for theirs."""
    by_dtype: dict[str, list[str]] = {}
    for each in file.fields[:MOST_FIELDS]:
        if each.unjudged:
            by_dtype.setdefault(each.unjudged, []).append(each.name or "")
    for dtype, names in by_dtype.items():
        where = f"{escaped(some_of(names))}: the" if any(names) else "its"
        yield f"{where} values ({escaped(dtype)}) were not judged"


def scan(shard: Shard, options: DataOptions, opener: Opener) -> Scanned:
    """Measure some rows of one array, or several small arrays."""
    made = Scanned()
    stem = os.path.basename(shard.path).partition(".")[0]
    with opener(shard.path) as file:
        for name in shard.fields or (shard.field,):
            each = file.field(name)
            stop = each.shape[0] if shard.fields else shard.stop
            lone = len(file.fields) == 1
            try:
                if each.samples is not None:
                    made.measures += _scan_list(each, each.samples(), options, stem)
                else:
                    made.measures += _scan_rows(each, shard.start, stop, options, stem, lone=lone)
            except UnreadableDataError as error:
                made.problems.append(DataProblem(str(error), name))
        if file.changed():
            made.problems.append(DataProblem(CHANGED))
    return made


def digests(each: ArrayField, indices: Array) -> Array:
    """Digests of whole samples, for the comparison of samples whose marks are equal."""
    made = np.empty(len(indices), dtype=np.uint64)
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


def _scan_rows(
    each: ArrayField, first: int, end: int, options: DataOptions, stem: str, *, lone: bool
) -> list[Measures]:
    """The measures of some rows of one field, read in pieces."""
    sample = tuple(each.shape[1:])
    width = max(1, math.prod(sample) * each.dtype.itemsize)
    rows = max(1, _PIECE // width)
    if each.kind == "other":
        return [Measures(each.name, role_of(each.name or stem, options), "other", rows=end - first)]
    parts = []
    for start in range(first, end, rows):
        stop = min(end, start + rows)
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
    return [thinned(whole) if each.shape[0] > LONG else whole]


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

    return ArrayField(name, used, kind, full, read, math.prod(full) * used.itemsize, unjudged=unjudged(dtype))


def unjudged(dtype: np.dtype[Any]) -> str:
    """The name of a dtype whose numbers no rule reads: a structure of several."""
    return str(dtype) if dtype.kind == "V" else ""


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

    size = math.prod(full) * dtype.itemsize
    return ArrayField(name, used, kind, full, read, size, whole=True, unjudged=unjudged(dtype))


def streamed_field(
    name: str | None, opener: Callable[[], Any], *, skip: int, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> ArrayField:
    """An array that is compressed as a whole: read from its beginning on, piece by piece.

    Args:
        name: its key.
        opener: gives the stream of its bytes.
        skip: bytes before the values.
        dtype: of the values.
        shape: of the array.
    """
    used, kind = kind_of(dtype, shape[1:])
    full = shape or (1,)
    row = math.prod(full[1:]) * dtype.itemsize
    held: list[Any] = []
    at = [0]

    def read(start: int, stop: int) -> Array:
        """Some rows; from the beginning again if they lie before those that were read last."""
        if not held or start < at[0]:  # rows are asked for in order, but for the few that are compared again
            held[:] = [opener()]
            at[0] = 0
            _pass_over(held[0], skip)
        _pass_over(held[0], (start - at[0]) * row)
        data = held[0].read((stop - start) * row)
        at[0] = stop
        if len(data) < (stop - start) * row:
            raise UnreadableDataError(f"the array is cut from sample {start:,} on")
        array = native(np.frombuffer(data, dtype=dtype).reshape(stop - start, *full[1:]))
        return array.view(np.uint16) if kind == "half" else array

    size = math.prod(full) * dtype.itemsize
    return ArrayField(name, used, kind, full, read, size, whole=True, unjudged=unjudged(dtype))


def _pass_over(stream: Any, count: int) -> None:
    while count > 0 and (data := stream.read(min(count, _PIECE))):
        count -= len(data)


def _buffer(size: int) -> memoryview:
    """A buffer of this thread, used again for the next piece: nothing measured keeps a view of it."""
    held: bytearray | None = getattr(_BUFFERS, "held", None)
    if held is None or len(held) < size:
        held = bytearray(max(size, _PIECE))
        _BUFFERS.held = held
    return memoryview(held)[:size]
