"""Files, local and remote: their bytes, names and folders.

Bytes come from a local file, any fsspec URL, a slice of either, or from memory. A path is a plain local path or a URL
with a protocol (`s3://bucket/run`, `memory://ckpt`, `file:///data`).

Files are read with `pread` into a small buffer and not mapped. A mapping would be faster while the file is in the page
cache, but a writer that truncates the file meanwhile (`torch.save` onto `last.pt`) would end this process with SIGBUS;
a read only returns fewer bytes. It also keeps the resident memory at the size of the buffer.
"""

from __future__ import annotations

import errno
import glob
import io
import os
import posixpath
import stat
import threading
from collections.abc import Iterator
from datetime import datetime
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from nantrap.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class ByteSource:
    """Random access to `size` bytes. `read_into` may be called from several threads."""

    name: str
    size: int

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset`. Returns fewer bytes only at the end of the file."""
        filled = 0
        while filled < len(buffer):
            got = self._read_some(offset + filled, buffer[filled:])
            if got == 0:
                break
            filled += got
        return filled

    def read(self, offset: int, size: int) -> bytes:
        """At most `size` bytes from `offset`; never allocates more than the file can give."""
        buffer = bytearray(max(0, min(size, self.size - offset)))
        got = self.read_into(offset, memoryview(buffer))
        return bytes(buffer[:got])

    def changed(self) -> bool:
        """Whether the file was written since it was opened."""
        return False

    def close(self) -> None:
        """Close the file."""

    def __enter__(self) -> ByteSource:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read_some(self, offset: int, buffer: memoryview) -> int:
        raise NotImplementedError


class LocalSource(ByteSource):
    """A file of this machine."""

    def __init__(self, path: str) -> None:
        self.name = path
        # Not waiting for a writer, as opening a pipe would.
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
        self._descriptor = os.open(path, flags)
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            os.close(self._descriptor)
            raise OSError(errno.EINVAL, "it is not a regular file (a pipe, a device or a folder)", path)
        self._seen = self._state()
        self.size = self._seen[0]
        self._lock = threading.Lock()

    def changed(self) -> bool:
        return self._state() != self._seen

    def close(self) -> None:
        os.close(self._descriptor)

    def _state(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    if hasattr(os, "preadv"):

        def _read_some(self, offset: int, buffer: memoryview) -> int:
            return os.preadv(self._descriptor, [buffer], offset)

    else:  # Windows has no pread: one seek and one read, together

        def _read_some(self, offset: int, buffer: memoryview) -> int:
            with self._lock:
                os.lseek(self._descriptor, offset, os.SEEK_SET)
                data = os.read(self._descriptor, len(buffer))
            buffer[: len(data)] = data
            return len(data)


class StreamSource(ByteSource):
    """An open, seekable stream, as fsspec gives one."""

    def __init__(self, stream: IO[bytes], *, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self._stream = stream
        self._lock = threading.Lock()

    def close(self) -> None:
        self._stream.close()

    def _read_some(self, offset: int, buffer: memoryview) -> int:
        with self._lock:
            self._stream.seek(offset)
            data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class BytesSource(ByteSource):
    """Bytes that are already in memory: an array inside a pickle."""

    def __init__(self, data: bytes, *, name: str) -> None:
        self.name = name
        self.size = len(data)
        self._data = memoryview(data)

    def _read_some(self, offset: int, buffer: memoryview) -> int:
        part = self._data[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)


class SliceSource(ByteSource):
    """A part of another source, which stays the owner of the file: one item of a distributed checkpoint."""

    def __init__(self, whole: ByteSource, *, offset: int, size: int, name: str) -> None:
        self.name = name
        self.size = max(0, min(size, whole.size - offset))
        self._whole = whole
        self._offset = offset

    def _read_some(self, offset: int, buffer: memoryview) -> int:
        room = min(len(buffer), self.size - offset)
        return self._whole.read_into(self._offset + offset, buffer[:room]) if room > 0 else 0


class _RawFile(io.RawIOBase):
    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.size}[whence]
        if base + offset < 0:
            raise OSError("seek before the beginning of the file")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        got = self._source.read_into(self._position, memoryview(buffer).cast("B"))
        self._position += got
        return got


def as_file(source: ByteSource) -> io.BufferedReader:
    """The source as a file object, for `zipfile` and `pickletools`. Closing it leaves the source open."""
    return io.BufferedReader(_RawFile(source))


# ---- names and folders: the few questions the audit asks a file system, answered by `os` or by fsspec


LOG_NAME = "quarantine.jsonl"
"""Marks a folder of checkpoints that were moved away, with a line for each. Audits leave such a folder out."""


class FileEntry(NamedTuple):
    """An entry of a folder."""

    path: str
    name: str
    is_folder: bool
    size: int = 0
    modified: float = 0.0


class LocalFiles:
    """The files of this machine."""

    def stat(self, path: str) -> FileEntry | None:
        """The file or folder at a path, a broken link included; `None` if nothing is there."""
        try:
            status = os.stat(path)
        except (OSError, ValueError):  # nothing there, or a name with a zero byte
            try:
                os.lstat(path)
            except (OSError, ValueError):
                return None
            return FileEntry(path, os.path.basename(path), is_folder=False)  # a broken link, or a link to itself
        name = os.path.basename(os.path.normpath(path))
        return FileEntry(path, name, os.path.isdir(path), status.st_size, status.st_mtime)

    def entries(self, folder: str) -> list[FileEntry]:
        """The entries of the folder, by name."""
        found = (self.stat(os.path.join(folder, name)) for name in sorted(os.listdir(folder)))
        return [entry for entry in found if entry is not None]

    def glob(self, pattern: str) -> list[str]:
        return sorted(glob.glob(pattern, recursive=True))

    def join(self, folder: str, name: str) -> str:
        return os.path.join(folder, name)

    def identity(self, path: str) -> str:
        """A text that is equal for two paths that lead to one file."""
        return os.path.realpath(path)

    def is_link(self, path: str) -> bool:
        return os.path.islink(path)

    def open(self, path: str) -> ByteSource:
        return LocalSource(path)


class RemoteFiles:
    """Whatever fsspec can reach. Paths keep their protocol."""

    def __init__(self, protocol: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise MissingExtraError("fsspec", extra="remote") from error
        try:
            self._files: Any = fsspec.filesystem(protocol)
        except (ImportError, ValueError) as error:
            raise UsageError(
                f"cannot open {protocol}:// addresses: {error}. "
                "Install the fsspec package for that protocol, or copy the file here first"
            ) from error

    def stat(self, path: str) -> FileEntry | None:
        try:
            return self._entry(self._files.info(path))
        except FileNotFoundError:
            return None

    def entries(self, folder: str) -> list[FileEntry]:
        found = [self._entry(info) for info in self._files.ls(folder, detail=True)]
        return sorted((entry for entry in found if entry.name), key=lambda entry: entry.name)

    def glob(self, pattern: str) -> list[str]:
        return sorted(self._files.unstrip_protocol(path) for path in self._files.glob(pattern))

    def join(self, folder: str, name: str) -> str:
        return posixpath.join(folder, name)

    def identity(self, path: str) -> str:
        return str(self._files.unstrip_protocol(path))

    def is_link(self, path: str) -> bool:
        return False

    def open(self, path: str) -> ByteSource:
        size = int(self._files.size(path))
        stream = self._files.open(path, "rb", block_size=8 << 20)
        return StreamSource(stream, name=path, size=size)

    def _entry(self, info: dict[str, Any]) -> FileEntry:
        """A file or folder as the remote file system lists it."""
        path = self._files.unstrip_protocol(info["name"])
        return FileEntry(
            path=path,
            name=posixpath.basename(path.rstrip("/")),
            is_folder=info.get("type") == "directory",
            size=int(info.get("size") or 0),
            modified=_timestamp(info),
        )


FileSystem = LocalFiles | RemoteFiles


def filesystem_of(path: str) -> FileSystem:
    """The file system a path belongs to."""
    protocol, separator, _ = path.partition("://")
    return RemoteFiles(protocol) if separator else LocalFiles()


def is_remote(path: str) -> bool:
    """Whether the path is a URL."""
    return "://" in path


def _timestamp(info: dict[str, Any]) -> float:
    for key in _TIME_KEYS:
        value = info.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return 0.0


_TIME_KEYS = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


def read_text(files: FileSystem, path: str, *, limit: int = 32 << 20) -> str:
    """A small text file; of a larger one, its start."""
    with files.open(path) as source:
        return source.read(0, limit).decode("utf-8", errors="replace")


def walk(files: FileSystem, folder: str, closed: list[OSError]) -> Iterator[tuple[str, list[FileEntry]]]:
    """Every folder below `folder`, itself first, each with its entries. A loop of links ends.

    A folder that may not be listed is put into `closed`.
    """
    seen: set[str] = set()
    pending = [folder]
    while pending:
        current = pending.pop()
        identity = files.identity(current)
        if identity in seen:
            continue
        seen.add(identity)
        try:
            entries = files.entries(current)
        except OSError as error:
            closed.append(error)
            continue
        yield current, entries
        pending.extend(entry.path for entry in reversed(entries) if entry.is_folder)
