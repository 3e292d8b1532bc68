"""Which checkpoint is meant by `resume=`, and which ones to try after it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from nantrap.checkpoints.catalogue import SavedCheckpoint
from nantrap.errors import UsageError


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidates in the order in which to try them. A file outside the store has no older one beside it."""

    candidates: tuple[SavedCheckpoint, ...]
    in_store: bool = True


def choose(resume: str | int | os.PathLike[str], folder: Path, newest_first: list[SavedCheckpoint]) -> Choice:
    """What `resume` asks for: `last_good`, `latest`, a step, or a path."""
    good = [saved for saved in newest_first if not saved.suspect]
    if resume == "last_good":
        return Choice(_some(good, folder, newest_first))
    if resume == "latest":
        return Choice(_some(newest_first, folder, newest_first))
    if isinstance(resume, int):
        wanted = next((saved for saved in newest_first if saved.step == resume), None)
        if wanted is None:
            raise UsageError(f"{folder} has no checkpoint of step {resume:,}; {_there(newest_first)}")
        return Choice((wanted, *(saved for saved in good if saved.sequence < wanted.sequence)))
    path = Path(resume)
    for place in (path, folder / path):
        wanted = next((s for s in newest_first if place.exists() and _same(s.path, place)), None)
        if wanted is not None:
            return Choice((wanted, *(saved for saved in good if saved.sequence < wanted.sequence)))
        if place.is_file():
            return Choice((SavedCheckpoint(place, 0, 0),), in_store=False)
    raise UsageError(
        f"resume={os.fspath(resume)!r}: neither last_good, latest, a step (an integer) nor a file that exists; "
        f"{_there(newest_first)}"
    )


def _some(
    candidates: list[SavedCheckpoint], folder: Path, everything: list[SavedCheckpoint]
) -> tuple[SavedCheckpoint, ...]:
    if candidates:
        return tuple(candidates)
    if everything:
        named = ", ".join(f"{saved.path.name}: {saved.suspect}" for saved in everything[:3])
        raise UsageError(f"{folder} has no good checkpoint left ({named}); resume='latest' takes one all the same")
    raise UsageError(f"{folder} has no checkpoint; save one first, or give the folder of another run")


def _there(newest_first: list[SavedCheckpoint]) -> str:
    if not newest_first:
        return "there is none at all"
    steps = ", ".join(f"{saved.step:,}" for saved in newest_first[:8])
    return f"there are steps {steps}" + (", …" if len(newest_first) > 8 else "")


def _same(left: Path, right: Path) -> bool:
    return os.path.realpath(left) == os.path.realpath(right)
