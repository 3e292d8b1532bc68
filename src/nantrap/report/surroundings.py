"""What is around an incident on disk: the run's description, the steps before, other incidents, the source file.

Everything here is optional and may be missing: an incident folder may be all that there is, and it is read while the
run continues. A journal of a gigabyte is searched by halving, never read whole.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from nantrap.incident import Incident, Source
from nantrap.incident.codec import NONFINITE

# ---- Where a step is in a journal, found by halving: a journal of a gigabyte is not read as a whole.

CHUNK = 64 * 1024
"""A place in the file is found to this many bytes; no line of a journal is longer."""


def bracket(file: BinaryIO, passed: Callable[[int], bool]) -> tuple[int, int]:
    """Two offsets, at most `CHUNK` apart, between which the first step begins that `passed` accepts.

    Args:
        file: the journal, whose steps rise.
        passed: whether a step is at or behind the place that is searched for.
    """
    low, high = 0, file.seek(0, os.SEEK_END)
    while high - low > CHUNK:
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
    file.readline(CHUNK)  # the rest of a line
    while file.tell() < end:
        step = step_of(file.readline(CHUNK))
        if step is not None:
            return step
    return None


def step_of(line: bytes) -> int | None:
    """The number of the step in one line; `None` for a broken line and for one that is no step."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or raw.get("kind") not in (None, "step"):
        return None
    step = raw.get("step")
    return step if isinstance(step, int) else None


# ---- The other steps of a run that failed as an incident did: most of them were counted and not diagnosed again.

_MARK = b'"incident":{'
_LONGEST = 64 * 1024 * 1024
_MOST = 2000


@dataclass(frozen=True, slots=True)
class Repeats:
    """The steps with the same phase, module, operation and cause, the incident's own step left out.

    `whole` is false where the journal is so long that only its end was searched.
    """

    steps: tuple[int, ...] = ()
    whole: bool = True


def repeats_of(incident: Incident, journal: Path) -> Repeats:
    """Search a journal for the steps that failed alike."""
    cause = incident.causes[0].slug if incident.causes else None
    wanted = (incident.phase, incident.module, incident.op, cause)
    steps: list[int] = []
    whole = True
    try:
        with journal.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            begin = max(0, len(text) - _LONGEST)
            whole = begin == 0
            for entry in _marked(text, begin):
                found = entry["incident"]
                alike = tuple(found.get(name) for name in ("phase", "module", "op", "cause")) == wanted
                if alike and entry.get("step") != incident.step and isinstance(entry.get("step"), int):
                    steps.append(entry["step"])
                if len(steps) == _MOST:
                    break
    except (OSError, ValueError):  # no journal, or an empty one
        return Repeats()
    return Repeats(tuple(dict.fromkeys(steps)), whole)


def _marked(text: mmap.mmap, begin: int) -> Iterator[dict[str, Any]]:
    """The lines that describe an incident, found without reading the others."""
    at = text.find(_MARK, begin)
    while at >= 0:
        end = text.find(b"\n", at)
        if end < 0:
            return  # it is being written
        try:
            entry = json.loads(text[text.rfind(b"\n", 0, at) + 1 : end])
        except (ValueError, RecursionError):
            entry = None
        if isinstance(entry, dict) and isinstance(entry.get("incident"), dict):
            yield entry
        at = text.find(_MARK, end)


_STEPS_BEFORE = 48
_CONTEXT = 3
_LARGEST_SOURCE = 5_000_000
_MOST_SIBLINGS = 60


@dataclass(frozen=True, slots=True)
class Moment:
    """One step before the incident, as far as the journal has it."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    action: str


@dataclass(frozen=True, slots=True)
class Sibling:
    """Another incident of the same run, as its own folder has it."""

    folder: str
    incident: Incident


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What was found around an incident. Empty where there is nothing."""

    run_name: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    moments: tuple[Moment, ...] = ()
    siblings: tuple[Sibling, ...] = ()
    repeats: Repeats = field(default_factory=Repeats)
    folder: str = ""
    files: tuple[tuple[str, int], ...] = ()
    kind: str = ""
    source: tuple[tuple[int, str], ...] = ()


def surroundings(incident: Incident, folder: Path | None) -> Surroundings:
    """Look around the folder of an incident (`runs/exp1/incidents/001204-r0`)."""
    source = source_lines(incident.source)
    if folder is None:
        return Surroundings(source=source)
    folder = Path(os.path.abspath(folder))
    run = folder.parent.parent if folder.parent.name == "incidents" else None
    about = read_json(folder / "bundle.json")
    files = about.get("files")
    names = sorted(name for name in files if isinstance(name, str)) if isinstance(files, Mapping) else []
    sizes = tuple((name, _size(folder / name)) for name in names if os.sep not in name)
    journal = run / f"journal-r{incident.rank}.jsonl" if run is not None else None
    return Surroundings(
        run_name=run.name if run is not None else "",
        info=read_json(run / "run.json") if run is not None else {},
        moments=moments_before(journal, incident.step) if journal is not None else (),
        siblings=_siblings(folder),
        repeats=repeats_of(incident, journal) if journal is not None else Repeats(),
        folder=folder.name,
        files=sizes,
        kind=str(about.get("kind", "")),
        source=source,
    )


def read_json(path: Path) -> Mapping[str, Any]:
    """The object in a JSON file; empty if there is none or it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def source_lines(source: Source | None) -> tuple[tuple[int, str], ...]:
    """The lines around the guilty one, if the file is there and still has that line; else the recorded line alone."""
    if source is None or not source.text:
        return ()
    alone = ((source.line, source.text),)
    path = Path(source.file)
    try:
        if path.suffix != ".py" or not path.is_file() or path.stat().st_size > _LARGEST_SOURCE:
            return alone
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return alone
    at = source.line - 1
    if not 0 <= at < len(lines) or lines[at].rstrip() != source.text.rstrip():
        return alone
    first, last = max(0, at - _CONTEXT), min(len(lines), at + _CONTEXT + 1)
    return tuple((number + 1, lines[number]) for number in range(first, last))


def moments_before(journal: Path, step: int) -> tuple[Moment, ...]:
    """The steps up to this one, oldest first, without reading the whole journal."""
    try:
        with journal.open("rb") as file:
            return tuple(_read_before(file, step))
    except OSError:
        return ()


def _read_before(file: BinaryIO, step: int) -> list[Moment]:
    """The last steps up to this one. The place is found by bisection, so a long journal is not read as a whole."""
    low, high = bracket(file, lambda found: found > step)
    file.seek(max(0, low - 4 * CHUNK))
    lines = file.read(high + CHUNK - file.tell()).split(b"\n")
    moments = [moment for line in lines if (moment := _moment(line)) is not None and moment.step <= step]
    return moments[-_STEPS_BEFORE:]


def _moment(line: bytes) -> Moment | None:
    """A line of the journal as a step; `None` for a broken line and for one that tells something else."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or not isinstance(raw.get("step"), int) or raw.get("kind") not in (None, "step"):
        return None
    rates = raw.get("lr")
    rate = rates[0] if isinstance(rates, list) and rates else rates
    return Moment(
        raw["step"], _number(raw.get("loss")), _number(raw.get("grad_norm")), _number(rate), str(raw.get("action", ""))
    )


def _number(raw: Any) -> float:
    if isinstance(raw, str):
        return NONFINITE.get(raw, math.nan)
    return float(raw) if isinstance(raw, (int, float)) and not isinstance(raw, bool) else math.nan


def _siblings(folder: Path) -> tuple[Sibling, ...]:
    """The other incidents of the same run. A folder that is not an incident, or is being written, is left out."""
    found = []
    try:
        names = sorted(entry.name for entry in folder.parent.iterdir() if entry.is_dir())
    except OSError:
        return ()
    for name in names[:_MOST_SIBLINGS]:
        if name == folder.name or name.startswith("."):
            continue
        document = read_json(folder.parent / name / "incident.json")
        try:
            found.append(Sibling(name, Incident.from_dict(document)))
        except ValueError:  # not an incident of ours, or being written
            continue
    return tuple(found)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
