"""What was appended to a file since the last read: whole lines, a chunk at a time, never the file as a whole."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from nantrap.errors import FormatError, UsageError

_CHUNK = 1 << 20  # columns of it fit into the cache of a core
_LONGEST_LINE = 64 << 20
_SETTLED_SECONDS = 5.0


class Tail:
    """Reads a growing file. Holds the offset up to which it has read, and how the file looked then.

    A last line without its end waits for the next read, unless nothing was written for some seconds: then the writer
    has ended without a newline, or died.

    Args:
        path: the file.
        carriage_return: whether `\\r` ends a line too, as in the output of a progress bar.
    """

    def __init__(self, path: Path, *, carriage_return: bool = False) -> None:
        self.path = path
        self.modified = 0.0
        self.last_bytes: int | None = None
        """Of a longer file, only this much of its end is read; the line in which that begins is left out."""
        self._ends = (b"\n", b"\r") if carriage_return else (b"\n",)
        self._offset = 0
        self._identity = (-1, -1)
        self._head = b""

    def replaced(self) -> bool:
        """Whether this is another file than the one read so far, or was rewritten: begin from its start then."""
        try:
            status = self.path.stat()
            with self.path.open("rb") as file:
                head = file.read(len(self._head))
        except OSError:
            return False  # gone for a moment, while it is rewritten
        same = (status.st_dev, status.st_ino) == self._identity or self._identity == (-1, -1)
        if same and status.st_size >= self._offset and head == self._head:
            return False
        self._offset, self._head, self._identity = 0, b"", (-1, -1)
        return True

    def chunks(self) -> Iterator[bytes]:
        """Whole lines that are new, some megabytes at a time."""
        try:
            file = self.path.open("rb")
        except OSError as error:
            if self._offset:
                return
            raise UsageError(f"{self.path}: cannot be read: {error.strerror or error}") from None
        with file:
            status = os.fstat(file.fileno())
            self.modified = status.st_mtime
            self._identity = (status.st_dev, status.st_ino)
            if not self._head:
                self._head = file.read(256)
            if self._offset == 0 and self.last_bytes is not None and status.st_size > self.last_bytes:
                file.seek(status.st_size - self.last_bytes)
                file.readline(self.last_bytes)
                self._offset = file.tell()
            file.seek(self._offset)
            rest = b""
            while block := file.read(_CHUNK):
                data = rest + block
                end = 1 + max(data.rfind(mark) for mark in self._ends)
                if end:
                    self._offset += end
                    yield data[:end]
                rest = data[end:]
                if len(rest) > _LONGEST_LINE:
                    raise FormatError(
                        f"{self.path}: a line of more than {_LONGEST_LINE >> 20} MB; this is not a log of lines"
                    )
            if rest and (time.time() - self.modified > _SETTLED_SECONDS or self._whole(rest)):
                self._offset += len(rest)
                yield rest

    def _whole(self, line: bytes) -> bool:
        """Whether a last line is complete though its end is missing: a JSON object ends with its brace."""
        if not line.lstrip().startswith(b"{"):
            return False
        try:
            json.loads(line)
        except ValueError:
            return False
        return True
