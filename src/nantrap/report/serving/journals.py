"""Steps from anywhere in a journal: a journal of a gigabyte is searched by halving, its end is read from the end."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from nantrap.incident.codec import NONFINITE
from nantrap.record.journal import RUN_ENDS

_CHUNK = 64 * 1024
_MOST_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Row:
    """One step of a journal: its numbers by name (`loss`, `grad_norm`, `lr`, `terms.kl`, `watch.alpha`)."""

    step: int
    action: str
    numbers: dict[str, float]
    milliseconds: float = 0.0
    incident: dict[str, Any] = field(default_factory=dict)


def parsed(line: bytes) -> Row | None:
    """The step in a line of a journal; `None` for half a line and for what is no step."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or raw.get("kind") not in (None, "step"):
        return None
    step = raw.get("step")
    if not isinstance(step, int) or isinstance(step, bool):
        return None
    numbers: dict[str, float] = {}
    for name in ("loss", "grad_norm", "scale"):
        if (number := _number(raw.get(name))) is not None:
            numbers[name] = number
    rates = raw.get("lr")
    if (rate := _number(rates[0] if isinstance(rates, list) and rates else rates)) is not None:
        numbers["lr"] = rate
    for group in ("terms", "watch"):
        found = raw.get(group)
        for name, content in found.items() if isinstance(found, dict) else ():
            if (number := _number(content)) is not None:
                numbers[f"{group}.{name}"] = number
    incident = raw.get("incident")
    return Row(
        step,
        str(raw.get("action", "apply")),
        numbers,
        _number(raw.get("ms")) or 0.0,
        incident if isinstance(incident, dict) else {},
    )


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
    lines = data.split(b"\n")[1 if start else 0 :]
    rows = [row for line in lines if (row := parsed(line)) is not None]
    return Ending(rows, _run_end(data.rstrip(b"\n").rpartition(b"\n")[2]), start + whole)


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
    return [row for line in data[:whole].split(b"\n") if (row := parsed(line)) is not None], offset + whole


def window(path: Path, first: int, last: int) -> list[Row]:
    """The steps from `first` to `last`, found by halving; cut off after 32 MB."""
    try:
        with path.open("rb") as file:
            return [row for row in _rows_from(file, first) if row.step <= last]
    except OSError:
        return []


def _rows_from(file: BinaryIO, first: int) -> Iterator[Row]:
    low, high = 0, file.seek(0, os.SEEK_END)
    while high - low > _CHUNK:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline(_CHUNK)
        found = None
        while found is None and file.tell() < high:
            found = parsed(file.readline(_CHUNK))
        if found is None or found.step >= first:
            high = middle
        else:
            low = middle
    file.seek(max(0, low - _CHUNK))
    data = file.read(_MOST_BYTES)
    for line in data.split(b"\n"):
        row = parsed(line)
        if row is not None and row.step >= first:
            yield row


def _number(raw: Any) -> float | None:
    if isinstance(raw, str):
        return NONFINITE.get(raw)
    if isinstance(raw, (int, float)) and not isinstance(raw, bool):
        return float(raw)
    return None


def finite_or_none(number: float) -> float | None:
    """For JSON, which has no NaN."""
    return number if math.isfinite(number) else None
