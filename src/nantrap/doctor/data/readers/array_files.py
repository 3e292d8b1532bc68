"""The files that hold arrays, opened: .npy, .npz, .pt and safetensors.

NumPy's object arrays are pickles and are not read. A torch file goes through the checkpoint readers: its pickle is
read, never run, and what is a field and what is a sample follows the saved object: a dict of tensors has one field per
key, a tuple one per position, a list of tensors or of dicts is a list of samples.
"""

from __future__ import annotations

import ast
import contextlib
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from nantrap.doctor.data.limits import MOST_FIELDS, MOST_MEMBERS, refuse_expansion, refuse_size
from nantrap.doctor.data.readers.arrays import (
    ArrayField,
    ArrayFile,
    direct_field,
    memory_field,
    streamed_field,
)
from nantrap.doctor.data.rows import Array
from nantrap.doctor.data.shards import DataProblem, UnreadableDataError
from nantrap.doctor.data.stored import (
    StoredArray,
    StoredObject,
    as_stream,
    children,
    open_source,
    read_stored,
    values_of_bytes,
)
from nantrap.incident.wording import escaped, some_of

_MAGIC = b"\x93NUMPY"
_HEADER = 1 << 20
_DTYPES = {
    "float64": "f8", "double": "f8", "float32": "f4", "float": "f4", "float16": "f2", "half": "f2", "bfloat16": "u2",
    "int64": "i8", "long": "i8", "int32": "i4", "int": "i4", "int16": "i2", "short": "i2", "int8": "i1", "uint8": "u1",
    "uint16": "u2", "uint32": "u4", "uint64": "u8", "bool": "?", "complex64": "c8", "complex128": "c16",
}  # fmt: skip
_DEEP = 8
_PAIR = 4
"""A list of up to this many arrays that differ only in kind is `[inputs, labels]`, not a list of samples."""


@contextlib.contextmanager
def open_npy(path: str) -> Iterator[ArrayFile]:
    """One array."""
    with open_source(path) as source:
        if source.size == 0:
            raise UnreadableDataError("the file is empty")
        field = _npy_field(None, source, offset=0, size=source.size)
        yield ArrayFile((field,), changed=source.changed)


@contextlib.contextmanager
def open_npz(path: str) -> Iterator[ArrayFile]:
    """Arrays in a zip archive. Members that are not compressed are read in place."""
    with open_source(path) as source:
        if source.size == 0:
            raise UnreadableDataError("the file is empty")
        _refuse_many_members(source)
        try:
            with as_stream(source) as stream, zipfile.ZipFile(stream) as archive:
                members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
                fields, problems = _npz_members(source, archive, members[:MOST_FIELDS])
        except (zipfile.BadZipFile, EOFError, struct.error, NotImplementedError, ValueError) as error:
            if not source.read(0, 2).startswith(b"PK"):
                raise UnreadableDataError("not an .npz archive: it does not begin with PK") from error
            if str(error) == "File is not a zip file":  # zipfile looks for the directory and finds none
                raise UnreadableDataError(
                    "the zip archive has no directory at its end: the file is cut short"
                ) from error
            raise UnreadableDataError(f"not a whole .npz archive: {error}") from error
        unread = len(members[MOST_FIELDS:])
        yield ArrayFile(tuple(fields), tuple(problems), changed=source.changed, unread=unread)


def _npz_members(
    source: Any, archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]
) -> tuple[list[ArrayField], list[DataProblem]]:
    """The arrays of an `.npz` archive, and the problems of members that cannot be read."""
    fields, problems = [], []
    for info in members:
        name = info.filename.removesuffix(".npy")
        try:
            if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
                header = source.read(info.header_offset, 30)
                if len(header) < 30 or header[:4] != b"PK\x03\x04":
                    raise UnreadableDataError("does not begin where the archive says")
                lengths = struct.unpack("<HH", header[26:30])
                offset = info.header_offset + 30 + sum(lengths)
                fields.append(_npy_field(name, source, offset=offset, size=info.file_size))
            else:
                fields.append(_npz_member(name, source, info, archive))
        except (UnreadableDataError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            problems.append(DataProblem(f"member {name}: {error}", name))
    return fields, problems


def _npy_field(name: str | None, source: Any, *, offset: int, size: int) -> ArrayField:
    """The array at `offset`; `size` bytes belong to it, header included."""
    header = source.read(offset, min(size, 12))
    shape, fortran, dtype, length = _npy_header(header, lambda start, count: source.read(offset + start, count))
    held = size - length
    needed = math.prod(shape) * dtype.itemsize
    if held < needed:
        raise UnreadableDataError(f"the file is cut: the header promises {needed:,} bytes of data, {held:,} are there")
    if fortran and len(shape) > 1:

        def load() -> Any:
            data = source.read(offset + length, needed)
            return np.frombuffer(data, dtype=dtype).reshape(shape[::-1]).T

        return memory_field(name, load, dtype=dtype, shape=shape)
    return direct_field(name, source, offset=offset + length, dtype=dtype, shape=shape)


def _npz_member(name: str, source: Any, info: zipfile.ZipInfo, archive: zipfile.ZipFile) -> ArrayField:
    """A compressed member of an archive: read piece by piece, or whole if its order is not that of samples."""
    with archive.open(info) as member:
        head = member.read(min(info.file_size, _HEADER))
    shape, fortran, dtype, length = _npy_header(head[:12], lambda start, count: head[start : start + count])
    needed = math.prod(shape) * dtype.itemsize
    if info.file_size - length < needed:
        raise UnreadableDataError("the header promises more data than the archive holds")
    refuse_expansion(info.file_size, info.compress_size)

    def opened() -> _Member:
        return _Member(source, info)

    if not fortran or len(shape) < 2:
        return streamed_field(name, opened, skip=length, dtype=dtype, shape=shape)
    refuse_size(needed, "a compressed array in Fortran order")

    def load() -> Any:
        data = opened().read(length + needed)[length:]
        if len(data) < needed:
            raise UnreadableDataError("damaged: it ends before its last value")
        return np.frombuffer(data, dtype=dtype).reshape(shape[::-1]).T

    return memory_field(name, load, dtype=dtype, shape=shape)


class _Member:
    """The bytes of a compressed member of an archive. Holds the open archive."""

    def __init__(self, source: Any, info: zipfile.ZipInfo) -> None:
        self._archive = zipfile.ZipFile(as_stream(source))
        self._stream = self._archive.open(info)

    def read(self, count: int) -> bytes:
        """The next bytes. Raises `UnreadableDataError` where they are damaged."""
        try:
            return self._stream.read(count)
        except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
            raise UnreadableDataError(f"damaged: {error}") from error


def _refuse_many_members(source: Any) -> None:
    """Raise for an archive whose directory, which is read whole, has very many entries."""
    window = source.read(max(0, source.size - 70_000), 70_000)
    at = window.rfind(b"PK\x05\x06")
    if at < 0 or at + 22 > len(window):
        return
    count, size = struct.unpack("<HI", window[at + 10 : at + 16])
    wide = window.rfind(b"PK\x06\x06", 0, at)
    if (count == 0xFFFF or size == 0xFFFFFFFF) and 0 <= wide <= len(window) - 48:
        count, size = struct.unpack("<QQ", window[wide + 32 : wide + 48])
    if count > MOST_MEMBERS or size > 100 * MOST_MEMBERS:
        raise UnreadableDataError(f"not read: the archive has {count:,} members, at most {MOST_MEMBERS:,} are read")


def _npy_header(head: bytes, read: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, order, dtype and the length of the header, from the first bytes of an array."""
    if head[: len(_MAGIC)] != _MAGIC[: len(head)]:
        raise UnreadableDataError("not a NumPy array: it does not begin with \\x93NUMPY")
    if len(head) < 12:
        raise UnreadableDataError("the file is cut inside of its header")
    wide = head[6] >= 2
    size = struct.unpack("<I", head[8:12])[0] if wide else struct.unpack("<H", head[8:10])[0]
    begin = 12 if wide else 10
    if size > _HEADER:
        raise UnreadableDataError("its header is larger than any array's")
    text = read(begin, size)
    if len(text) < size:
        raise UnreadableDataError("the file is cut inside of its header")
    try:
        described = ast.literal_eval(text.decode("latin1"))
        shape, fortran = tuple(described["shape"]), bool(described["fortran_order"])
        dtype = np.dtype(described["descr"])
        if not all(isinstance(extent, int) and extent >= 0 for extent in shape):
            raise ValueError(f"shape {shape}")
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError) as error:
        raise UnreadableDataError(f"its header is damaged: {error}") from error
    if dtype.hasobject:
        raise UnreadableDataError("it holds Python objects as a pickle, which is not run; save plain arrays instead")
    return shape, fortran, dtype, begin + size


@contextlib.contextmanager
def open_torch(path: str) -> Iterator[ArrayFile]:
    """The fields of a .pt or safetensors file."""
    with open_source(path) as source:
        stored = read_stored(source, "safetensors" if path.lower().endswith(".safetensors") else None)
        fields: list[ArrayField] = []
        if stored.tree is None or not _torch_fields(stored, (), stored.tree, fields, 0):
            fields = [_array_field(".".join(at) or None, array) for at, array in stored.arrays.items()]
        notes, problems = _not_run(stored, has_fields=bool(fields))
        if stored.in_parts:
            names = escaped(some_of([".".join(path) or "its tensor" for path in stored.in_parts]))
            parts = "stored in parts (sparse, nested or quantised)"
            text = f"{names}: {parts}; these values are judged one by one, not its samples"
            notes = (*notes, text)
        yield ArrayFile(tuple(fields), problems, notes, changed=source.changed)


def _not_run(stored: StoredObject, *, has_fields: bool) -> tuple[tuple[str, ...], tuple[DataProblem, ...]]:
    """Notes and problems about what a pickle would run. Nothing of it is run, so what it would make is not seen."""
    if not has_fields and (stored.runs or stored.objects):
        names = some_of([escaped(name, most=120) for name in (*stored.runs, *stored.objects)], 3)
        return (), (DataProblem(f"no tensor in it can be read: loading it would run {names}, which is not done here"),)
    if stored.runs:
        names = some_of([escaped(name, most=120) for name in stored.runs], 3)
        return (f"loading it would run {names}; its tensors were read without that",), ()
    return (), ()


def _torch_fields(stored: StoredObject, path: tuple[str, ...], node: Any, fields: list[ArrayField], depth: int) -> bool:
    """Append the fields below a node. Whether every tensor could be placed."""
    array = stored.arrays.get(path)
    if array is not None and not isinstance(node, (dict, list, tuple)):
        fields.append(_array_field(".".join(path) or None, array))
        return True
    entries = list(children(node))
    if not entries or depth > _DEEP:
        return not any(other[: len(path)] == path for other in stored.arrays)
    if isinstance(node, list) and _are_samples(stored, path, entries):
        fields.extend(_list_fields(stored, path, entries))
        return True
    if isinstance(node, tuple) and all(isinstance(value, (int, float)) for _, value in entries):
        return True
    complete = True
    for key, value in entries:
        if isinstance(value, (str, bytes, int, float, bool, type(None))):
            continue
        complete &= _torch_fields(stored, (*path, key), value, fields, depth + 1)
    return complete


def _are_samples(stored: StoredObject, path: tuple[str, ...], entries: list[tuple[str, Any]]) -> bool:
    """Whether the entries of a list are samples, rather than the fields of a dataset."""
    arrays = [stored.arrays.get((*path, key)) for key, _ in entries]
    if all(isinstance(value, (int, float)) for _, value in entries):
        return True
    found = [array for array in arrays if array is not None]
    if len(found) < len(arrays):
        return True
    if len(found) > _PAIR:
        return True
    lengths = {array.shape[:1] for array in found}
    alike = {(len(array.shape), array.dtype, array.shape[1:]) for array in found}
    return not (len(lengths) == 1 and len(alike) == len(found) and len(found) > 1)


def _list_fields(stored: StoredObject, path: tuple[str, ...], entries: list[tuple[str, Any]]) -> Iterator[ArrayField]:
    """The fields of a list of samples: one if they are arrays or numbers, one per key if they are dicts or tuples."""
    columns: dict[tuple[str, ...], list[Any]] = {}
    for number, (key, value) in enumerate(entries):
        here = (*path, key)
        parts = list(children(value)) if here not in stored.arrays else []
        named: list[tuple[tuple[str, ...], tuple[str, ...], Any]] = [
            ((part,), (*here, part), inner) for part, inner in parts
        ] or [((), here, value)]
        for name, at, inner in named:
            column = columns.setdefault(name, [None] * number)
            if at in stored.arrays:
                column.append(stored.arrays[at])
            elif isinstance(inner, (int, float)):
                column.append(inner)
            elif isinstance(inner, (list, tuple)) and all(isinstance(each, (int, float)) for each in inner):
                column.append(np.array(inner))
            else:
                column.append(inner if isinstance(inner, str) else None)
        for column in columns.values():
            column.extend([None] * (number + 1 - len(column)))
    for name, column in columns.items():
        full = ".".join((*path, *name)) or None
        size = sum(_bytes(value) for value in column if isinstance(value, StoredArray))
        yield ArrayField(
            full, np.dtype("f4"), "float", (len(column),), _never, max(size, len(column)), samples=_loader(column)
        )


def _loader(column: list[Any]) -> Callable[[], list[Any]]:
    def load() -> list[Any]:
        return [_load(value) if isinstance(value, StoredArray) else value for value in column]

    return load


def _never(start: int, stop: int) -> Array:
    raise AssertionError("a list of samples is read as a list")


def _bytes(array: StoredArray) -> int:
    return math.prod(array.shape) * np.dtype(_DTYPES.get(array.dtype, "u1")).itemsize


def _array_field(name: str | None, array: StoredArray) -> ArrayField:
    """A tensor of a torch file as a field; read in place if its layout allows it."""
    code = _DTYPES.get(array.dtype)
    if (table := values_of_bytes(array.dtype)) is not None:
        stored = _array_field(name, replace(array, dtype="uint8"))
        read = stored.read
        return replace(stored, dtype=table.dtype, kind="float", read=lambda start, stop: table[read(start, stop)])
    if code is None:  # quantised, packed
        size = math.prod(array.shape)
        return ArrayField(name, np.dtype("u1"), "other", array.shape or (1,), _never, size, unjudged=array.dtype)
    dtype = np.dtype(code)
    if _is_row_major(array):
        is_bfloat16 = array.dtype == "bfloat16"
        return direct_field(
            name, array.source, offset=array.offset, dtype=dtype, shape=array.shape, bfloat16=is_bfloat16
        )
    return memory_field(name, lambda: _load(array), dtype=np.dtype("f4") if code == "u2" else dtype, shape=array.shape)


def _load(array: StoredArray) -> Array:
    """The whole tensor as an array; bfloat16 as float32."""
    dtype = np.dtype(_DTYPES.get(array.dtype, "u1"))
    if 0 in array.shape:
        return np.empty(array.shape, dtype=dtype)
    span = 1 + sum((size - 1) * step for size, step in zip(array.shape, array.stride, strict=True))
    flat = np.frombuffer(array.source.read(array.offset, span * dtype.itemsize), dtype=dtype)
    strides = tuple(step * dtype.itemsize for step in array.stride)
    made = np.array(np.lib.stride_tricks.as_strided(flat, shape=array.shape, strides=strides))
    if (table := values_of_bytes(array.dtype)) is not None:
        return np.asarray(table[made])
    if array.dtype == "bfloat16":
        return (made.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return made


def _is_row_major(array: StoredArray) -> bool:
    step = 1
    for size, stride in zip(reversed(array.shape), reversed(array.stride), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True
