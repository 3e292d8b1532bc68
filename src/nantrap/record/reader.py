"""Reading a journal: the one reader that every other tool uses. Works while the run is alive."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from nantrap.errors import FormatError, UsageError
from nantrap.incident.codec import NONFINITE

T = TypeVar("T")
_NAME = re.compile(r"journal-r(\d+)\.jsonl$")


@dataclass(frozen=True, slots=True)
class JournalLine:
    """One step of one rank as the journal has it; `fields` is the whole line."""

    step: int
    action: str
    loss: float
    grad_norm: float
    lr: tuple[float, ...] = ()
    terms: Mapping[str, float] = field(default_factory=dict)
    watch: Mapping[str, float] = field(default_factory=dict)
    scale: float | None = None
    milliseconds: float = 0.0
    rank: int = 0
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False)


def journal_paths(run_dir: str | os.PathLike[str]) -> dict[int, Path]:
    """The journals of a run by rank. The path of a journal itself is used directly."""
    path = Path(run_dir)
    if path.is_file():
        match = _NAME.search(path.name)
        return {int(match[1]) if match else 0: path}
    found = {
        int(match[1]): entry for entry in sorted(path.glob("journal-r*.jsonl")) if (match := _NAME.search(entry.name))
    }
    if not found:
        raise UsageError(f"{path}: no journal here (expected journal-r0.jsonl); give the run_dir of a guarded run")
    return dict(sorted(found.items()))


def read_journal(run_dir: str | os.PathLike[str], *, rank: int | None = None) -> Iterator[JournalLine]:
    """Every step, rank by rank. Torn lines (a crash while writing) are skipped; wrong ones raise an error that names
    them."""
    for journal_rank, path in journal_paths(run_dir).items():
        if rank is None or rank == journal_rank:
            yield from _read_file(path, journal_rank)


def _read_file(path: Path, rank: int) -> Iterator[JournalLine]:
    """The steps of one journal."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                raw = json.loads(text)
            except json.JSONDecodeError:
                # half a line: the run crashed while it wrote, or is writing at this moment
                continue
            if isinstance(raw, dict) and raw.get("kind", "step") != "step":
                continue  # not a step: an evaluation, or the beginning of an incident
            yield _line(raw, path, number, rank)


def _line(raw: Any, path: Path, number: int, rank: int) -> JournalLine:
    """One step; a field that does not fit is refused by file, line and name."""
    where = f"{path.name}, line {number}"
    if not isinstance(raw, dict):
        raise FormatError(f"{where}: expected an object")
    step = raw.get("step")
    if not isinstance(step, int) or isinstance(step, bool):
        raise FormatError(f"{where}: field step: expected a whole number, got {step!r}")
    return JournalLine(
        step=step,
        action=str(raw.get("action", "apply")),
        loss=_number(raw.get("loss", "nan"), "loss", where),
        grad_norm=_number(raw.get("grad_norm", "nan"), "grad_norm", where),
        lr=tuple(_number(value, f"lr[{i}]", where) for i, value in enumerate(_of(list, raw, "lr", where))),
        terms=_numbers(raw, "terms", where),
        watch=_numbers(raw, "watch", where),
        scale=None if raw.get("scale") is None else _number(raw["scale"], "scale", where),
        milliseconds=_number(raw.get("ms", 0.0), "ms", where),
        rank=rank,
        fields=raw,
    )


def _numbers(raw: Mapping[str, Any], name: str, where: str) -> dict[str, float]:
    return {key: _number(value, f"{name}.{key}", where) for key, value in _of(dict, raw, name, where).items()}


def _of(kind: type[T], raw: Mapping[str, Any], name: str, where: str) -> T:
    value = raw.get(name)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        word = "a list" if kind is list else "an object"
        raise FormatError(f"{where}: field {name}: expected {word}, got {value!r}")
    return value


def _number(value: Any, name: str, where: str) -> float:
    if isinstance(value, str) and value in NONFINITE:
        return NONFINITE[value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise FormatError(f"{where}: field {name}: expected a number, got {value!r}")
