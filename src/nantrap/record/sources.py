"""The kinds of logs: each source turns a file, or what was appended to it, into records."""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nantrap.errors import FormatError, UsageError
from nantrap.record.event_files import EventFile
from nantrap.record.textlog import LogNote, TextLog

_CHUNK = 1 << 20  # columns of it fit into the cache of a core
_LONGEST_LINE = 16 << 20
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


Records = Sequence[Mapping[str, Any]]


class LogSource:
    """A log that may grow. Holds how far it was read.

    Args:
        path: the file, or the folder of several.
        tail: what was appended to it, for a log of lines.
    """

    def __init__(self, path: Path, tail: Tail | None = None) -> None:
        self.path = path
        self.modified = 0.0
        self.problems: list[str] = []
        self.total_steps: int | None = None
        self.total_epochs: int | None = None
        self.on_read: Callable[[int], None] | None = None
        """Called with the bytes that were read, for a progress bar."""
        self._tail = tail

    def only_end(self, last_bytes: int) -> None:
        """Before the first read: of a longer log of lines, read only its end."""
        if self._tail is not None:
            self._tail.last_bytes = last_bytes

    def begin_again(self) -> bool:
        """Whether the log was replaced since the last read; what was read so far is invalid then."""
        return self._tail is not None and self._tail.replaced()

    def read(self) -> Iterator[Records]:
        """What is new."""
        raise NotImplementedError

    def _chunks(self) -> Iterator[bytes]:
        """Whole lines that are new."""
        assert self._tail is not None
        for chunk in self._tail.chunks():
            yield chunk
            if self.on_read is not None:
                self.on_read(len(chunk))
        self.modified = self._tail.modified


class JsonLines(LogSource):
    """One JSON object per line. Any other line is skipped and counted; half a line waits."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Tail(path))
        self._line = 0

    def begin_again(self) -> bool:
        self._line = 0 if (again := super().begin_again()) else self._line
        return again

    def read(self) -> Iterator[Records]:
        for chunk in self._chunks():
            yield self.decode(chunk)

    def decode(self, chunk: bytes) -> Records:
        """The records of whole lines that come after those of the last call: parsed at once, or each where one is
        damaged."""
        text = chunk.rstrip(b"\n").decode("utf-8", "replace")
        lines = text.count("\n") + 1
        try:
            # one call for all lines: a raw newline cannot be inside of a JSON value
            records: Records = json.loads(f"[{text.replace(chr(10), ',')}]")
        except (ValueError, RecursionError):
            records = []
        if len(records) != lines or not all(type(record) is dict for record in records):
            each = (self._record(line, number) for number, line in enumerate(text.split("\n"), start=self._line + 1))
            records = [record for record in each if record is not None]
        self._line += lines
        return records

    def _record(self, line: str, number: int) -> dict[str, Any] | None:
        """The object of one line; what is no object is counted as a problem."""
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            return record
        if line.strip():
            self.problems.append(f"{self.path.name}, line {number}: not a JSON object, skipped")
        return None


class TextLines(LogSource):
    """A plain text log, read by pattern."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Tail(path, carriage_return=True))
        self._log = TextLog()

    @property
    def notes(self) -> list[LogNote]:
        """Lines that report a problem."""
        return self._log.notes

    @property
    def lines(self) -> int:
        """How many lines were read."""
        return self._log.lines

    def begin_again(self) -> bool:
        again = super().begin_again()
        if again:
            self._log = TextLog()
        return again

    def read(self) -> Iterator[Records]:
        for chunk in self._chunks():
            text = chunk.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
            yield self._log.records(text.split("\n"))
        self.total_steps, self.total_epochs = self._log.total_steps, self._log.total_epochs


class CsvLines(LogSource):
    """A table with a header, such as Lightning's metrics.csv. An empty cell is a missing value."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Tail(path))
        self._header: list[str] = []
        self._separator = "\t" if path.suffix == ".tsv" else ","

    def begin_again(self) -> bool:
        again = super().begin_again()
        if again:
            self._header = []
        return again

    def read(self) -> Iterator[Records]:
        """Records of the lines that were added since the last read; the first line of the file names the columns."""
        for chunk in self._chunks():
            lines = chunk.decode("utf-8-sig", "replace").splitlines()
            if not self._header and lines:
                head = self._first_line()
                if self._separator not in head and ";" in head:
                    self._separator = ";"
                self._header = next(csv.reader([head], delimiter=self._separator), [])
                lines = lines[1:] if lines[0] == head else lines  # a read of the end alone begins behind it
            rows = csv.reader(lines, delimiter=self._separator)
            yield [{key: cell for key, cell in zip(self._header, row, strict=False) if cell} for row in rows if row]

    def _first_line(self) -> str:
        with self.path.open("rb") as file:
            return "".join(file.readline(1 << 20).decode("utf-8-sig", "replace").splitlines()[:1])


class JsonDocument(LogSource):
    """A JSON file that is rewritten as a whole: transformers' trainer_state.json, or a list of objects."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._seen = (-1, -1)

    def _state(self) -> tuple[int, int]:
        try:
            status = self.path.stat()
        except OSError:
            return self._seen
        return status.st_mtime_ns, status.st_size

    def begin_again(self) -> bool:
        return self._seen not in ((-1, -1), self._state())

    def read(self) -> Iterator[Records]:
        """The records of the whole file, if it changed since the last read."""
        state = self._state()
        if state == self._seen:
            return
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise FormatError(f"{self.path}: cannot be read as JSON: {error}") from None
        self._seen, self.modified = state, state[0] / 1e9
        records = document.get("log_history") if isinstance(document, dict) else document
        if not isinstance(records, list):
            raise FormatError(
                f"{self.path}: no log in this JSON file; expected a list of objects, or an object with log_history "
                "(trainer_state.json)"
            )
        if isinstance(document, dict):
            steps, epochs = document.get("max_steps"), document.get("num_train_epochs")
            self.total_steps = steps if isinstance(steps, int) and steps > 0 else None
            self.total_epochs = epochs if isinstance(epochs, int) and epochs > 0 else None
        yield [record for record in records if isinstance(record, dict)]


class EventFiles(LogSource):
    """The TensorBoard event files of one folder, the oldest first."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._files: dict[Path, EventFile] = {}

    def read(self) -> Iterator[Records]:
        paths = [self.path] if self.path.is_file() else sorted(self.path.glob("*tfevents*"), key=lambda p: p.name)
        for path in paths:
            file = self._files.setdefault(path, EventFile(path))
            yield from file.records()
            self.modified = max(self.modified, file.modified)


# ---- Which kind of log a path holds, by its content; and the one log that a folder means.

_HEAD = 65_536
_NAMED = ("trainer_state.json", "metrics.csv")
_PATTERNS = ("*.jsonl", "*.ndjson", "*.log", "*.csv", "*.txt", "*.out")


def find_log(path: Path) -> Path:
    """The log that a path means: the file itself, or the one log in the folder. Several, or none, are an error."""
    if not path.is_dir():
        if not path.exists():
            raise UsageError(f"{path}: no such file or folder; give a run folder or a log")
        return path
    if next(path.glob("*tfevents*"), None) is not None:
        return path
    for name in _NAMED:
        if (path / name).is_file():
            return path / name
    checkpoints = [p for p in path.glob("checkpoint-*/trainer_state.json") if p.parent.name[11:].isdigit()]
    if checkpoints:
        return max(checkpoints, key=lambda p: int(p.parent.name[11:]))
    below = sorted({file.parent for file in path.glob("**/*tfevents*")} | set(path.glob("**/metrics.csv")))
    found = [file for pattern in _PATTERNS for file in sorted(path.glob(pattern))] or below
    lines = [file for file in found if file.suffix in (".jsonl", ".ndjson")]
    if len(found) == 1 or len(lines) == 1:  # a log for people may lie beside one for programs
        return (lines or found)[0]
    if not found:
        raise UsageError(
            f"{path}: no run and no log in this folder (looked for journal-r0.jsonl, TensorBoard event files, "
            "trainer_state.json, metrics.csv, *.jsonl, *.log); give the file itself"
        )
    names = ", ".join(str(file.relative_to(path)) for file in found[:5])
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    raise UsageError(f"{path}: several logs in this folder: {names}{more}; give one of them")


def source_of(path: Path) -> tuple[str, LogSource]:
    """The kind of a log and its source, judged by name and content. Nothing in it is executed."""
    if path.is_dir() or "tfevents" in path.name:
        return "tensorboard", EventFiles(path)
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    if b"\0" in head:
        raise FormatError(f"{path}: a binary file, not a log; give JSON lines, CSV, text or TensorBoard event files")
    text = head.decode("utf-8", "replace").lstrip("\ufeff \r\n\t")
    first, newline, rest = text.partition("\n")
    if path.suffix in (".jsonl", ".ndjson") or _is_object(first):
        return "jsonl", JsonLines(path)
    if text[:1] in ("{", "[") and (path.suffix == ".json" or text[:2] in ("{\n", "[\n", "[{")):
        return "json", JsonDocument(path)
    if path.suffix in (".csv", ".tsv") or (newline and _is_table(first, rest.partition("\n")[0])):
        return "csv", CsvLines(path)
    return "text", TextLines(path)


def _is_object(line: str) -> bool:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and "log_history" not in record


def _is_table(header: str, row: str) -> bool:
    """A line of names and a line of numbers, equally many of both."""
    names, cells = header.strip().split(","), row.strip().split(",")
    if (
        len(names) < 2
        or len(names) != len(cells)
        or not all(name.strip(' "') and not name[0].isdigit() for name in names)
    ):
        return False
    try:
        return [float(cell) for cell in cells if cell] != []
    except ValueError:
        return False
