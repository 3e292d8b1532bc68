"""NumPy's own files: .npy and .npz. Object arrays are pickles and are not read."""

from __future__ import annotations

import ast
import contextlib
import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from nantrap.doctor.data.readers.arrays import ArrayField, ArrayFile, direct_field, memory_field
from nantrap.doctor.data.shards import DataProblem, UnreadableDataError
from nantrap.doctor.data.stored import as_stream, open_source

_MAGIC = b"\x93NUMPY"
_HEADER = 1 << 20


@contextlib.contextmanager
def open_npy(path: str) -> Iterator[ArrayFile]:
    """One array."""
    with open_source(path) as source:
        if source.size == 0:
            raise UnreadableDataError("the file is empty")
        field = _field(None, source, offset=0, size=source.size)
        yield ArrayFile((field,), changed=source.changed)


@contextlib.contextmanager
def open_npz(path: str) -> Iterator[ArrayFile]:
    """Arrays in a zip archive. Members that are not compressed are read in place."""
    with open_source(path) as source:
        if source.size == 0:
            raise UnreadableDataError("the file is empty")
        try:
            with as_stream(source) as stream, zipfile.ZipFile(stream) as archive:
                fields, problems = _members(source, archive)
        except (zipfile.BadZipFile, EOFError, struct.error, NotImplementedError, ValueError) as error:
            if not source.read(0, 2).startswith(b"PK"):
                raise UnreadableDataError("not an .npz archive: it does not begin with PK") from error
            if str(error) == "File is not a zip file":  # zipfile looks for the directory and finds none
                raise UnreadableDataError(
                    "the zip archive has no directory at its end: the file is cut short"
                ) from error
            raise UnreadableDataError(f"not a whole .npz archive: {error}") from error
        yield ArrayFile(tuple(fields), tuple(problems), changed=source.changed)


def _members(source: Any, archive: zipfile.ZipFile) -> tuple[list[ArrayField], list[DataProblem]]:
    """The arrays of an `.npz` archive, and the problems of members that cannot be read."""
    fields, problems = [], []
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if info.is_dir() or name == info.filename:
            continue
        try:
            if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
                header = source.read(info.header_offset, 30)
                if len(header) < 30 or header[:4] != b"PK\x03\x04":
                    raise UnreadableDataError("does not begin where the archive says")
                lengths = struct.unpack("<HH", header[26:30])
                offset = info.header_offset + 30 + sum(lengths)
                fields.append(_field(name, source, offset=offset, size=info.file_size))
            else:
                fields.append(_compressed(name, source, info, archive))
        except (UnreadableDataError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            problems.append(DataProblem(f"member {name}: {error}", name))
    return fields, problems


def _field(name: str | None, source: Any, *, offset: int, size: int) -> ArrayField:
    """The array at `offset`; `size` bytes belong to it, header included."""
    header = source.read(offset, min(size, 12))
    shape, fortran, dtype, length = _header(header, lambda start, count: source.read(offset + start, count))
    held = size - length
    needed = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if held < needed:
        raise UnreadableDataError(f"the file is cut: the header promises {needed:,} bytes of data, {held:,} are there")
    if fortran and len(shape) > 1:

        def load() -> Any:
            data = source.read(offset + length, needed)
            return np.frombuffer(data, dtype=dtype).reshape(shape[::-1]).T

        return memory_field(name, load, dtype=dtype, shape=shape)
    return direct_field(name, source, offset=offset + length, dtype=dtype, shape=shape)


def _compressed(name: str, source: Any, info: zipfile.ZipInfo, archive: zipfile.ZipFile) -> ArrayField:
    """A compressed member of an archive, which is loaded whole when it is read."""
    with archive.open(info) as member:
        head = member.read(min(info.file_size, _HEADER))
    shape, _fortran, dtype, length = _header(head[:12], lambda start, count: head[start : start + count])

    def load() -> Any:
        try:
            with as_stream(source) as stream, zipfile.ZipFile(stream) as again, again.open(info) as member:
                return np.lib.format.read_array(io.BytesIO(member.read()), allow_pickle=False)
        except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
            raise UnreadableDataError(f"damaged: {error}") from error

    needed = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if info.file_size - length < needed:
        raise UnreadableDataError("the header promises more data than the archive holds")
    return memory_field(name, load, dtype=dtype, shape=shape)


def _header(head: bytes, read: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
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
