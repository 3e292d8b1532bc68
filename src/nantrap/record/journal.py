"""The journal: one JSON line per step, written so that it costs a healthy run almost nothing.

Lines are kept as dictionaries and turned into text together every few seconds, at an incident and at the end; one
`write` call appends whole lines, so a reader never needs a lock and at worst sees a torn last line after a crash. A
full disk stops the journal with one warning, never the training.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import sys
import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nantrap.errors import UsageError
from nantrap.incident.codec import encode as as_json
from nantrap.incident.wording import escaped

RUN_STARTS = "run_starts"
"""The kind of the line with which another run begins in a journal that was used before."""
RUN_RESUMES = "run_resumes"
"""The kind of the line that says that a state was restored, and from which step on it is counted."""
RUN_ENDS = "run_ends"
"""The `kind` of the last line of a run that was not killed: with `time`, and `error` if an exception ended it."""

_FLUSH_SECONDS = 2.0
FLUSH_LINES = 512
"""This many lines are written immediately; fewer wait up to `_FLUSH_SECONDS`."""


class Journal:
    """Appends the steps of one rank to `journal-r<rank>.jsonl`. Holds the lines not yet written, and an open file."""

    def __init__(self, run_dir: str | os.PathLike[str], *, rank: int = 0) -> None:
        folder = Path(run_dir)
        self.path = folder / f"journal-r{rank}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise UsageError(
                f"run_dir={str(run_dir)!r} cannot be written: {error.strerror or error}. "
                "Give another folder, or run_dir=None to keep no journal"
            ) from error
        self.used_before = os.fstat(descriptor).st_size > 0
        """Whether an earlier run has written into this file."""
        self.pending: list[Mapping[str, Any]] = []
        """The lines that are not written yet."""
        self.due = time.perf_counter() + _FLUSH_SECONDS
        """When they are written at the latest. The recorder of a step adds its line and compares this itself: it has
        the time at hand, and one call per step less is worth it."""
        self._writer = _Writer(descriptor, self.path)
        # also when the guard is never closed: at garbage collection and at the interpreter's exit
        self._finalizer = weakref.finalize(self, _finish, self.pending, self._writer)
        _end_torn_line(self.path, self._writer)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one step. Written within a few seconds; sooner after `flush`."""
        self.pending.append(line)
        if len(self.pending) >= FLUSH_LINES or time.perf_counter() >= self.due:
            self.flush()

    def flush(self) -> None:
        """Write what is kept."""
        self.due = time.perf_counter() + _FLUSH_SECONDS
        _write_lines(self.pending, self._writer)

    def close(self) -> None:
        """Write what is kept and close the file. May be called again."""
        self._finalizer()

    def abandon(self) -> None:
        """Leave the file to the process that opened it. After a fork two processes hold the same lines."""
        self.pending.clear()
        self._finalizer.detach()
        self._writer.close()


class _Writer:
    """A file descriptor that gives up once, with one warning, instead of raising into a training loop."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor: int | None = descriptor
        self.path = path

    def write(self, text: str) -> None:
        """Append text; after the first error nothing is written any more."""
        if self.descriptor is None or not text:
            return
        data = text.encode()
        try:
            while data:
                data = data[os.write(self.descriptor, data) :]
        except OSError as error:
            self.close()
            if not sys.is_finalizing():
                warnings.warn(
                    escaped(f"nantrap: the journal {self.path} stops here: {error.strerror or error}", most=4000)
                    + ". Training continues",
                    RuntimeWarning,
                    stacklevel=4,
                )

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def _write_lines(lines: list[Mapping[str, Any]], writer: _Writer) -> None:
    """Turn the lines into text and append them in one write; the list is empty afterwards."""
    if not lines:
        return
    encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
    parts = []
    for line in lines:
        try:
            parts.append(encode(line))
        except ValueError:  # rare: only incidents hold NaN
            parts.append(encode(as_json(line)))
    lines.clear()
    writer.write("\n".join(parts) + "\n")


def _finish(lines: list[Mapping[str, Any]], writer: _Writer) -> None:
    _write_lines(lines, writer)
    writer.close()


def _end_torn_line(path: Path, writer: _Writer) -> None:
    """A run that crashed while writing left half a line; end it, so that the next one begins a line of its own."""
    try:
        size = path.stat().st_size
        if size:
            with path.open("rb") as file:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    writer.write("\n")
    except OSError:
        pass


# ---- The last steps in memory, as the journal has them: what rules about growth, learning rates and spikes use.


class StepRecord(NamedTuple):
    """One step, as the journal has it."""

    step: int
    loss: float
    grad_norm: float
    lr: tuple[float, ...]
    applied: bool
    scale: float | None = None
    ended: float = math.nan
    """When, by `time.perf_counter`; NaN of a step of another process."""


class History:
    """The last `limit` steps, oldest first."""

    def __init__(self, limit: int = 256) -> None:
        self._records: deque[StepRecord] = deque(maxlen=limit)
        self.first_lr: tuple[float, ...] = ()

    def add(self, record: StepRecord) -> None:
        """Append a step."""
        if not self.first_lr:
            self.first_lr = record.lr
        self._records.append(record)

    def __iter__(self) -> Iterator[StepRecord]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def applied(self) -> list[StepRecord]:
        """The steps that moved the weights."""
        return [record for record in self._records if record.applied]

    def step_seconds(self) -> float:
        """How long a step usually takes, from the end of one to the end of the next; 0 if that is not known."""
        pairs = itertools.pairwise(self._records)
        took = [after.ended - before.ended for before, after in pairs if after.applied and after.ended > before.ended]
        return statistics.median(took) if took else 0.0
