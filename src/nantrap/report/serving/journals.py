"""Steps from anywhere in a journal: a journal of a gigabyte is searched by halving, its end is read from the end."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from nantrap.record import RUN_ENDS, steps_of
from nantrap.report.surroundings import CHUNK, bracket

_KNOWN = ("loss", "grad_norm", "lr", "scale")
_MOST_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Row:
    """One step of a journal: its numbers by name (`loss`, `grad_norm`, `lr`, `terms.kl`, `watch.alpha`)."""

    step: int
    action: str
    numbers: dict[str, float]
    milliseconds: float = 0.0
    incident: dict[str, Any] = field(default_factory=dict)


def rows_of(lines: bytes) -> list[Row]:
    """The steps in whole lines of a journal; half a line and what is no step are left out."""
    if not lines.strip():
        return []
    series = steps_of(lines)
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
    for taken in filter(None, [series.get("ms")]):
        for row, number in zip(taken.row.tolist(), taken.value.tolist(), strict=True):
            times[row] = number
    rows = [Row(*fields) for fields in zip(series.step.tolist(), actions, numbers, times, strict=True)]
    for name in ("cause", "phase", "module", "op"):
        for labels in filter(None, [series.labels(f"incident.{name}")]):
            for row, code in zip(labels.row.tolist(), labels.code.tolist(), strict=True):
                rows[row].incident[name] = labels.names[code]
    return rows if len(numbered) == len(rows) else [rows[row] for row in numbered.row.tolist()]


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a journal: its last steps, the line with which the run said that it is over, and where it ends."""

    rows: list[Row]
    over: dict[str, Any] | None
    offset: int


def ending(path: Path, *, most_bytes: int = 256 * 1024) -> Ending:
    """The end of a journal, as much as fits into this many bytes, in one read."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            start = max(0, end - most_bytes)
            file.seek(start)
            data = file.read(end - start)
    except OSError:
        return Ending([], None, 0)
    whole = data.rfind(b"\n") + 1
    lines = data.partition(b"\n")[2] if start else data
    return Ending(rows_of(lines), _run_end(data.rstrip(b"\n").rpartition(b"\n")[2]), start + whole)


def tail(path: Path, *, most_bytes: int = 256 * 1024) -> list[Row]:
    """The last steps of a journal, as many as fit into this many bytes."""
    return ending(path, most_bytes=most_bytes).rows


def _run_end(last: bytes) -> dict[str, Any] | None:
    """The last line of a journal if the run said with it that it is over."""
    try:
        line = json.loads(last)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) and line.get("kind") == RUN_ENDS else None


def appended(path: Path, offset: int, *, most_bytes: int = 4 * 1024 * 1024) -> tuple[list[Row], int]:
    """The whole lines after an offset, and the offset after them. A file that became shorter is read from the start."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            if end < offset:
                offset = 0
            file.seek(offset)
            data = file.read(min(end - offset, most_bytes))
    except OSError:
        return [], offset
    whole = data.rfind(b"\n") + 1
    return rows_of(data[:whole]), offset + whole


def window(path: Path, first: int, last: int) -> list[Row]:
    """The steps from `first` to `last`, found by halving; cut off after 32 MB."""
    try:
        with path.open("rb") as file:
            return [row for row in _rows_from(file, first) if row.step <= last]
    except OSError:
        return []


def _rows_from(file: BinaryIO, first: int) -> Iterator[Row]:
    """The rows from a step on. The place is found by bisection, so a long journal is not read as a whole."""
    low, _ = bracket(file, lambda found: found >= first)
    file.seek(max(0, low - CHUNK))
    start = file.tell()
    data = file.read(_MOST_BYTES)
    yield from (row for row in rows_of(data.partition(b"\n")[2] if start else data) if row.step >= first)


def finite_or_none(number: float) -> float | None:
    """For JSON, which has no NaN."""
    return number if math.isfinite(number) else None
