"""Files that the script opens for writing: emptied at their first byte, not when they are opened.

`open(path, "wb")` empties a file before anything can be said of what will be written. While a script is guarded the
file keeps its content until the first byte, so that a state which is judged in between need not replace it: the bytes
go to another file then, through the same object and the same descriptor. In every other respect it is the file that
Python would have opened: the same inode, rights, links and position. Whatever could show a difference (a write, a read,
`fileno`, `truncate`, `close`) empties it first.
"""

from __future__ import annotations

import io
import os
import stat
import zlib
from collections import deque
from pathlib import Path
from typing import Any, Protocol

_HEAD = 8192
"""Bytes by which serialised states are told apart first: what Python writes at once at least, if there are so many."""
_SURE = 64
"""A beginning of fewer bytes says nothing, unless it is the whole."""


class SerialisedState:
    """Bytes that were made of a state. Holds their beginning and their checksum, not the bytes.

    Args:
        data: the bytes.
        names: what is not finite in the state; empty for a good one.
    """

    def __init__(self, data: memoryview | bytes, names: str) -> None:
        self.head = bytes(data[:_HEAD])
        self.length = len(data)
        self.crc = zlib.crc32(data) if names else 0
        self.names = names
        self.is_written = False
        """Whether a file was seen to which they were written."""

    def begins(self, data: memoryview) -> bool:
        """Whether these may be the first of the bytes; if all are given, whether they are the same."""
        if len(data) >= self.length and self.names:
            return zlib.crc32(data[: self.length]) == self.crc
        count = min(len(data), len(self.head))
        return count >= min(_SURE, self.length) and bytes(data[:count]) == self.head[:count]


class FileGate(Protocol):
    """What a written file asks and tells."""

    serialised: deque[SerialisedState]

    def divert(self, file: WrittenFile) -> Path | None:
        """The bytes of a non-finite state are about to be written: where they go instead, if they do."""

    def note_closed(self, file: WrittenFile, status: os.stat_result) -> None:
        """A file was written and is being closed; `file.state` has the non-finite state that was written to it."""


class WrittenFile(io.FileIO):
    """A file that was opened for writing. Holds whether its old content is still there.

    Args:
        file: the path or descriptor that the script gave.
        mode: the script's, without `b`.
        closefd, opener: as for `open`.
        gate: decides where a bad state goes.
    """

    def __init__(self, file: Any, mode: str, closefd: bool, opener: Any, gate: FileGate) -> None:
        self._gate, self._pid = gate, os.getpid()
        self.keeps_content = False
        self.is_judged = False
        """Whether it is known what is written to it: from its first bytes, or from the object before them."""
        self.holds_bad = False
        """Whether a non-finite state was written to it, as far as this was seen."""
        self.state: SerialisedState | None = None
        """The state whose bytes these are."""
        self.beside: Path | None = None
        """Where the bytes go instead."""
        self.replaced = False
        """Whether it had content that is gone."""
        self._crc: int | None = 0
        by_path = opener is None and not isinstance(file, int)
        super().__init__(file, mode, closefd, _without_truncation if by_path else opener)
        self.path = Path(os.path.abspath(os.fsdecode(file))) if by_path else None
        status = os.fstat(super().fileno())
        self.keeps_content = by_path and stat.S_ISREG(status.st_mode) and status.st_size > 0

    def divert(self, beside: Path) -> None:
        """Write to another file from here on; the one that was opened stays as it is. Raises `OSError`."""
        flags = os.O_RDWR if self.readable() else os.O_WRONLY
        descriptor = os.open(beside, flags | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            os.lseek(descriptor, self.tell(), os.SEEK_SET)
            os.dup2(descriptor, super().fileno(), inheritable=False)
        finally:
            os.close(descriptor)
        self.leave()

    def leave(self) -> None:
        """What is in the file stays, also when it is closed."""
        self.keeps_content = False

    def _empty(self) -> None:
        """Do what `open` would have done. Not in a forked process: the file is its parent's."""
        if self.keeps_content and os.getpid() == self._pid:
            os.ftruncate(super().fileno(), 0)
            self.replaced = True
        self.keeps_content = False

    def _begin(self, data: memoryview) -> None:
        """Before the first byte: are these the bytes of a bad state? The newest ones that begin so decide."""
        self.is_judged = True
        state = next((each for each in reversed(self._gate.serialised) if each.begins(data)), None)
        if state is not None and state.names:
            self.state, self.holds_bad = state, True
            self.beside = self._gate.divert(self)

    def _is_another(self) -> bool:
        """Whether the bytes that began like those of a bad state were other ones in the end."""
        return self.state is not None and self._crc not in (None, self.state.crc)

    def write(self, data: Any) -> int:
        """Write bytes; the first ones empty the file."""
        if not self.is_judged:
            self._begin(memoryview(data).cast("B"))
        self._empty()
        count = super().write(data)
        if self.state is not None and self._crc is not None:
            self._crc = zlib.crc32(memoryview(data).cast("B")[:count], self._crc)
        return count

    def fileno(self) -> int:
        """The descriptor: whoever has it sees the file as `open` would have left it."""
        self._empty()
        return super().fileno()

    def readinto(self, buffer: Any) -> int | None:
        """Read into a buffer."""
        self._empty()
        return super().readinto(buffer)

    def read(self, size: int | None = -1) -> bytes | None:  # type: ignore[override]
        """Read bytes."""
        self._empty()
        return super().read(-1 if size is None else size)

    def readall(self) -> bytes | None:  # type: ignore[override]
        """Read to the end."""
        self._empty()
        return super().readall()

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move; the end is where `open` would have left it."""
        if whence == os.SEEK_END:
            self._empty()
        self._crc = None  # what is written is not in order any more
        return super().seek(offset, whence)

    def truncate(self, size: int | None = None) -> int:
        """Cut or extend the file."""
        self._empty()
        return super().truncate(size)

    def close(self) -> None:
        """Close it; a file to which nothing was written is empty then."""
        if self.closed:
            return
        try:
            self._empty()
            if self._is_another():
                if self.beside is not None and self.path is not None:
                    os.replace(self.beside, self.path)
                self.state, self.holds_bad = None, False
            self._gate.note_closed(self, os.fstat(super().fileno()))
        finally:
            super().close()


def _without_truncation(path: Any, flags: int) -> int:
    return os.open(path, flags & ~os.O_TRUNC, 0o666)
