"""Which runs and logs there are under a folder, and the files of a run. Links are not followed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_DEPTH = 4
_MOST_RUNS = 20_000
_NAMED = ("trainer_state.json", "metrics.csv")
_ENDINGS = (".jsonl", ".ndjson", ".log", ".out", ".txt", ".csv", ".tsv")


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Where a run is: its folder, or the file (TensorBoard: the folder) of a log that nantrap did not write."""

    path: Path
    foreign: bool = False


def places_under(root: Path) -> list[RunPlace]:
    """Runs (folders with a journal) and possible logs, by path. Folders inside a run are not searched."""
    found: list[RunPlace] = []
    waiting = [(root, 0)]
    while waiting and len(found) < _MOST_RUNS:
        folder, depth = waiting.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        if any(entry.name.startswith("journal-r") and entry.name.endswith(".jsonl") for entry in entries):
            found.append(RunPlace(folder))
            continue
        found += [RunPlace(path, foreign=True) for path in _logs(folder, entries)]
        if depth < _DEPTH:
            for entry in entries:
                if entry.name[:1] not in (".", "_") and entry.is_dir(follow_symlinks=False):
                    waiting.append((Path(entry.path), depth + 1))
    return sorted(found, key=lambda place: place.path)


def _logs(folder: Path, entries: Sequence[os.DirEntry[str]]) -> Iterator[Path]:
    """The logs in one folder: where a tool writes one in several forms, the one that says most."""
    files = [entry for entry in entries if entry.name[:1] not in (".", "_") and entry.is_file(follow_symlinks=False)]
    names = {entry.name for entry in files}
    if any("tfevents" in name for name in names):
        yield folder
        return
    for name in _NAMED:
        if name in names:
            # the state is saved again in every checkpoint: the newest one has all of it
            if not (name == _NAMED[0] and folder.name.startswith("checkpoint-") and _is_newer(folder)):
                yield folder / name
            return
    yield from (Path(entry.path) for entry in files if entry.name.endswith(_ENDINGS) and entry.stat().st_size)


def _is_newer(checkpoint: Path) -> bool:
    """Whether the folder has a later checkpoint next to it."""
    number = checkpoint.name.rpartition("-")[2]
    with contextlib.suppress(OSError):
        for other in checkpoint.parent.glob("checkpoint-*/trainer_state.json"):
            later = other.parent.name.rpartition("-")[2]
            if number.isdigit() and later.isdigit() and int(later) > int(number):
                return True
    return False
