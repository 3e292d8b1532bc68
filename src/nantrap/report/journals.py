"""The files of a run, and the steps from anywhere in a journal.

A journal of a gigabyte is never read as a whole: a place in it is found by halving, its end is read from the end.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from nantrap.record import Series, StepTally, steps_of, tally_of
from nantrap.report.states import PROBE

_KNOWN = ("loss", "grad_norm", "lr", "scale")
_MOST_BYTES = 32 * 1024 * 1024
_CHUNK = 64 * 1024
"""A place in the file is found to this many bytes; no line of a journal is longer."""


def journals_of(folder: Path) -> list[Path]:
    """The journals of a run in the order of their ranks."""
    found = []
    with contextlib.suppress(OSError):
        for path in folder.glob("journal-r*.jsonl"):
            number = path.name.removeprefix("journal-r").removesuffix(".jsonl")
            if number.isdigit() and path.is_file():
                found.append((int(number), path))
    return [path for _, path in sorted(found)]


def incident_folders(run: Path) -> list[Path]:
    """The folders of the incidents of a run, by name."""
    try:
        return sorted(p for p in (run / "incidents").iterdir() if p.is_dir() and not p.name.startswith("."))
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class JournalRow:
    """One step of a journal: its numbers by name (`loss`, `grad_norm`, `lr`, `terms.kl`, `watch.alpha`).

    Its action is that of the journal, or `probe`.
    """

    step: int
    action: str
    numbers: dict[str, float]
    milliseconds: float = 0.0
    incident: dict[str, Any] = field(default_factory=dict)

    @property
    def is_event(self) -> bool:
        """Whether the step was refused, or had an incident."""
        return bool(self.incident) or self.action not in ("apply", PROBE)

    @property
    def cause(self) -> str:
        """The slug of the cause of its incident; empty if there is none."""
        return str(self.incident.get("cause") or "")


def rows_of(lines: bytes) -> list[JournalRow]:
    """The steps in whole lines of a journal; half a line and what is no step are left out."""
    if not lines.strip():
        return []
    return steps_as_rows(steps_of(lines)[0])


def steps_as_rows(series: Series) -> list[JournalRow]:
    """The steps of a series, one by one."""
    numbered = series.get("step")
    if numbered is None:
        return []
    kept = [name for name in series.names if name in _KNOWN or name.startswith(("terms.", "watch."))]
    found = [series[name] for name in kept]
    dense = [column for column in found if len(column) == len(series)]
    names = [column.name for column in dense]
    values = zip(*(column.value.tolist() for column in dense), strict=True) if dense else ((),) * len(series)
    numbers: list[dict[str, float]] = [dict(zip(names, row, strict=True)) for row in values]
    for column in found:
        if len(column) < len(series):
            for row, number in zip(column.row.tolist(), column.value.tolist(), strict=True):
                numbers[row][column.name] = number
    actions, times = ["apply"] * len(series), [0.0] * len(series)
    for labels in filter(None, [series.labels("action")]):
        for row, code in zip(labels.row.tolist(), labels.code.tolist(), strict=True):
            actions[row] = labels.names[code]
    for row in (~series.applied & ~series.refused).nonzero()[0].tolist():
        actions[row] = PROBE
    for taken in filter(None, [series.get("ms")]):
        for row, number in zip(taken.row.tolist(), taken.value.tolist(), strict=True):
            times[row] = number
    rows = [JournalRow(*fields) for fields in zip(series.step.tolist(), actions, numbers, times, strict=True)]
    for name in ("cause", "phase", "module", "op"):
        for labels in filter(None, [series.labels(f"incident.{name}")]):
            for row, code in zip(labels.row.tolist(), labels.code.tolist(), strict=True):
                rows[row].incident[name] = labels.names[code]
    return rows if len(numbered) == len(rows) else [rows[row] for row in numbered.row.tolist()]


@dataclass(frozen=True, slots=True)
class JournalSlice:
    """Whole lines of a journal: the steps in them, how many there are of each kind, and the offset after them."""

    rows: list[JournalRow]
    tally: StepTally
    after: int


def appended(path: Path, offset: int, *, most_bytes: int = 4 * 1024 * 1024) -> JournalSlice:
    """The whole lines after an offset. A file that became shorter is read from the start."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            if end < offset:
                offset = 0
            file.seek(offset)
            data = file.read(min(end - offset, most_bytes))
    except OSError:
        return JournalSlice([], StepTally(), offset)
    whole = data.rfind(b"\n") + 1
    series, marks = steps_of(data[:whole])
    return JournalSlice(steps_as_rows(series), tally_of(series, (mark.fields for mark in marks)), offset + whole)


def window(path: Path, first: int, last: int) -> list[JournalRow]:
    """The steps from `first` to `last`, found by halving; cut off after 32 MB."""
    try:
        with path.open("rb") as file:
            low, _ = _bracket(file, lambda found: found >= first)
            data = _whole_lines(file, max(0, low - _CHUNK), _MOST_BYTES)
    except OSError:
        return []
    return [row for row in rows_of(data) if first <= row.step <= last]


def rows_before(path: Path, step: int, *, most: int) -> list[JournalRow]:
    """The last steps up to this one, oldest first, found by halving."""
    try:
        with path.open("rb") as file:
            low, high = _bracket(file, lambda found: found > step)
            start = max(0, low - 4 * _CHUNK)
            data = _whole_lines(file, start, high + _CHUNK - start)
    except OSError:
        return []
    return [row for row in rows_of(data) if row.step <= step][-most:]


def _whole_lines(file: BinaryIO, start: int, most_bytes: int) -> bytes:
    """The lines after an offset; the line that the offset cuts is left out."""
    file.seek(start)
    data = file.read(most_bytes)
    return data.partition(b"\n")[2] if start else data


def _bracket(file: BinaryIO, passed: Callable[[int], bool]) -> tuple[int, int]:
    """Two offsets, at most `_CHUNK` apart, between which the first step begins that `passed` accepts.

    Args:
        file: the journal, whose steps rise.
        passed: whether a step is at or behind the place that is searched for.
    """
    low, high = 0, file.seek(0, os.SEEK_END)
    while high - low > _CHUNK:
        middle = (low + high) // 2
        found = _first_step_after(file, middle, high)
        if found is None or passed(found):
            high = middle
        else:
            low = middle
    return low, high


def _first_step_after(file: BinaryIO, offset: int, end: int) -> int | None:
    """The first step in a whole line after an offset."""
    file.seek(offset)
    file.readline(_CHUNK)  # the rest of a line
    while file.tell() < end:
        step = _step_of(file.readline(_CHUNK))
        if step is not None:
            return step
    return None


def _step_of(line: bytes) -> int | None:
    """The number of the step in one line; `None` for a broken line and for one that is no step."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or raw.get("kind") not in (None, "step"):
        return None
    step = raw.get("step")
    return step if isinstance(step, int) else None


def finite_or_none(number: float) -> float | None:
    """For JSON, which has no NaN."""
    return number if math.isfinite(number) else None
