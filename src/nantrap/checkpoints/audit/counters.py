"""Checkpoints between which nothing was trained: the run went on, and the optimizer's own counter did not.

A script that replaces a bad loss by a constant, or skips every batch, still counts its epochs and saves. Adam and most
other optimizers count the updates that they made, and this count is in the checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from nantrap.checkpoints.audit.verdict import CheckpointAudit
from nantrap.incident.wording import escaped

_PROGRESS = ("epoch", "step", "scheduler_step")
_MARGIN = 2.0
"""With gradient accumulation several steps of a script make one update; steps worth this many updates prove nothing."""


class _Save(NamedTuple):
    """What a checkpoint tells of the run: its own count, what it counts, and the updates of its optimizer."""

    path: str
    counts: str
    progress: float
    updates: int


def hints_of(checkpoints: Sequence[CheckpointAudit]) -> list[str]:
    """One sentence for each series of saves without an update between them.

    Args:
        checkpoints: oldest first.
    """
    series: dict[str, list[_Save]] = {}
    for checkpoint in checkpoints:
        save = _save_of(checkpoint)
        if save is not None:
            series.setdefault(re.sub(r"\d+", "#", checkpoint.path), []).append(save)
    return [text for saves in series.values() for text in _still(saves)]


def _save_of(checkpoint: CheckpointAudit) -> _Save | None:
    """How many updates a checkpoint has, beside the progress that it names; `None` if it does not say both."""
    updates = checkpoint.facts.get("optimizer_step")
    if not isinstance(updates, int):
        return None
    for name in _PROGRESS:
        value = checkpoint.facts.get(name)
        if isinstance(value, (int, float)):
            return _Save(checkpoint.path, name.replace("_", " "), float(value), updates)
    return None


def _still(saves: list[_Save]) -> list[str]:
    """The longest parts of a series in which the updates stay the same while the progress grows."""
    found = []
    first = 0
    for position in range(1, len(saves) + 1):
        ended = position == len(saves) or saves[position].updates != saves[first].updates
        if ended:
            start, end = saves[first], saves[position - 1]
            growth = end.progress - start.progress
            usual = 0.0 if start.counts == "epoch" else _MARGIN * max(1.0, start.progress / max(start.updates, 1))
            if growth > usual and start.counts == end.counts:
                found.append(
                    f"{escaped(start.path)} to {escaped(end.path)}: the optimizer made no update between them. Its "
                    f"counter stays at {start.updates:,} while the {start.counts} goes from {start.progress:g} to "
                    f"{end.progress:g} (NT505 dead_training)"
                )
            first = position
    return found
