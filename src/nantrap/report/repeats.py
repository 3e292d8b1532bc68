"""The other steps of a run that failed as an incident did: most of them were counted and not diagnosed again."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nantrap.incident import Incident

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
