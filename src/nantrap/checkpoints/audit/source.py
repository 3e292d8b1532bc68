"""Where bytes come from: a local file, any fsspec URL, a slice of either, or bytes in memory.

Files are read with `pread` into a small buffer and not mapped. A mapping would be faster while the file is in the page
cache, but a writer that truncates the file meanwhile (`torch.save` onto `last.pt`) would end this process with SIGBUS;
a read only returns fewer bytes. It also keeps the resident memory at the size of the buffer.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
from types import TracebackType
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class Source:
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

    def __enter__(self) -> Source:
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


class LocalSource(Source):
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


class StreamSource(Source):
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


class BytesSource(Source):
    """Bytes that are already in memory: an array inside a pickle."""

    def __init__(self, data: bytes, *, name: str) -> None:
        self.name = name
        self.size = len(data)
        self._data = memoryview(data)

    def _read_some(self, offset: int, buffer: memoryview) -> int:
        part = self._data[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)


class SliceSource(Source):
    """A part of another source, which stays the owner of the file: one item of a distributed checkpoint."""

    def __init__(self, whole: Source, *, offset: int, size: int, name: str) -> None:
        self.name = name
        self.size = max(0, min(size, whole.size - offset))
        self._whole = whole
        self._offset = offset

    def _read_some(self, offset: int, buffer: memoryview) -> int:
        room = min(len(buffer), self.size - offset)
        return self._whole.read_into(self._offset + offset, buffer[:room]) if room > 0 else 0


class _RawFile(io.RawIOBase):
    def __init__(self, source: Source) -> None:
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


def as_file(source: Source) -> io.BufferedReader:
    """The source as a file object, for `zipfile` and `pickletools`. Closing it leaves the source open."""
    return io.BufferedReader(_RawFile(source))
