"""Logs that nantrap did not write, on the live page: opened like `nantrap watch` opens them, shown like a run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nantrap.health import judge
from nantrap.record import Column, Run, envelope, is_evaluation, open_run
from nantrap.report.journals import JournalRow, finite_or_none
from nantrap.report.states import verdict_of

LARGEST = 32 << 20
"""Bytes of a log that are read for its page; of a longer one, the end."""
_KNOWN = ("loss", "grad_norm", "lr", "scale")
_HIDDEN = frozenset({"step", "wall_time", "epoch", "ms"})
_MOST_NAMES = 24
_LINES = ("text", "jsonl", "csv")


def stamp(path: Path) -> tuple[int, int]:
    """Size and time of the last write in nanoseconds, of a file or of the event files in a folder; raises OSError."""
    files = [path] if path.is_file() else [file for file in path.glob("*tfevents*") if file.is_file()]
    statuses = [file.stat() for file in files]
    if not statuses:
        raise FileNotFoundError(path)
    return sum(status.st_size for status in statuses), max(status.st_mtime_ns for status in statuses)


class ForeignLog:
    """An opened log. Holds the run that it describes, and a lock: several requests may ask for it at once.

    Args:
        path: the log.
        last_bytes: of a log of lines that is longer, only the end is read.
    """

    def __init__(self, path: Path, *, last_bytes: int = LARGEST) -> None:
        self._lock = threading.Lock()
        self.run = open_run(path, last_bytes=last_bytes)
        self._only_end = self.run.kind in _LINES and stamp(path)[0] > last_bytes

    @property
    def is_training(self) -> bool:
        """Whether it has a loss, or a gradient norm. A file of data or of words has none, and is no run."""
        return any(self.run.main.get(name) is not None for name in ("loss", "grad_norm"))

    def refresh(self) -> None:
        """Read what was appended."""
        with self._lock:
            self.run.refresh()

    def verdict(self) -> tuple[str, str]:
        """The verdict of `nantrap check` on what was read, in a word, and its first reason."""
        word, reason = verdict_of(judge(self.run))
        return word, f"in the end of the log: {reason}" if self._only_end else reason

    def rows(self, *, most: int = 2000, after: int | None = None) -> list[JournalRow]:
        """The last steps, or those after a step."""
        with self._lock:
            steps = self.run.main.step
            start = max(0, len(steps) - 8 * most)  # TensorBoard has a line for each value
            found = list(_rows(self.run, start, len(steps)))
        if after is not None:
            found = [row for row in found if row.step > after]
        return found[-most:]

    def window(self, first: int, last: int) -> list[JournalRow]:
        """The steps from `first` to `last`."""
        with self._lock:
            inside = np.flatnonzero((self.run.main.step >= first) & (self.run.main.step <= last))
            if not len(inside):
                return []
            return [row for row in _rows(self.run, int(inside[0]), int(inside[-1]) + 1) if first <= row.step <= last]

    def curves(self, first: int, last: int, *, points: int = 600) -> dict[str, Any]:
        """Every curve in at most `points` columns: smallest, middle and largest value of each."""
        found: dict[str, list[list[Any]]] = {}
        width = 1.0
        with self._lock:
            for name, column in _shown(self.run):
                made = envelope(column.step, column.value, first=first, last=last, most=points)
                width = made.width
                starts = made.left.astype(np.int64).tolist()
                found[name] = [
                    [
                        starts[i], finite_or_none(float(made.low[i])), finite_or_none(float(made.middle[i])),
                        finite_or_none(float(made.high[i])), int(made.finite[i]), int(made.nonfinite[i]),
                    ]
                    for i in range(len(made))
                    if made.finite[i] or made.nonfinite[i]
                ]  # fmt: skip
        return {"first": first, "last": last, "width": width, "columns": found, "marks": [], "read": 1.0}


def _shown(run: Run) -> Iterator[tuple[str, Column]]:
    """The columns by the names that the page knows, then the others by their own."""
    main = run.main
    taken = set()
    for known in _KNOWN:
        column = main.get(known)
        if column is not None and column.name not in taken:
            taken.add(column.name)
            yield known, column
    others = [name for name in main.names if name not in taken and name not in _HIDDEN]
    for name in sorted(others, key=lambda name: not is_evaluation(name))[:_MOST_NAMES]:
        yield name, main[name]


def _rows(run: Run, start: int, stop: int) -> Iterator[JournalRow]:
    """Rows of the table as steps; consecutive rows of one step are one."""
    steps = run.main.step[start:stop].tolist()
    numbers: list[dict[str, float]] = [{} for _ in steps]
    for name, column in _shown(run):
        low, high = np.searchsorted(column.row, (start, stop))
        for row, value in zip(column.row[low:high].tolist(), column.value[low:high].tolist(), strict=True):
            numbers[row - start][name] = value
    merged: dict[str, float] = {}
    for i, step in enumerate(steps):
        merged.update(numbers[i])
        if i + 1 == len(steps) or steps[i + 1] != step:
            if merged:
                yield JournalRow(step, "apply", merged)
            merged = {}
