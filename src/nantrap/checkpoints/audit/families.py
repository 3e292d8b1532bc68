"""The checkpoints of one run together: their order, the newest healthy one, and saves without training between them.

The newest healthy one is found with as few reads as possible.
A run with NaN in its weights does not recover: once a save holds NaN, all later ones do. So the search starts at the
newest and steps back in growing strides (1, 2, 4, …) until it finds a healthy one, then bisects the range between. The
result is healthy and its successor is not, whatever happened in between; one damaged file cannot hide an older good
one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from nantrap.checkpoints.audit.layouts import Checkpoint
from nantrap.checkpoints.audit.verdict import CheckpointAudit
from nantrap.incident.wording import escaped

Item = TypeVar("Item")

_STEP = re.compile(r"(?:step|steps|iter|iteration|checkpoint|ckpt)[=_\-]?(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")


def newest_healthy(items: Sequence[Item], is_healthy: Callable[[Item], bool]) -> Item | None:
    """The last healthy item of a sequence in the order of time, asking for about 2·log2(n) of them."""
    bad, stride = len(items), 1
    good = bad - 1
    while good >= 0 and not is_healthy(items[good]):
        bad = good
        good = max(good - stride, 0) if good > 0 else -1
        stride *= 2
    if good < 0:
        return None
    while bad - good > 1:
        middle = (good + bad) // 2
        if is_healthy(items[middle]):
            good = middle
        else:
            bad = middle
    return items[good]


def step_in_name(path: str) -> int | None:
    """The step a file or folder is named after: 100 in `epoch=3-step=100.ckpt`, `checkpoint-100`, `model_100.pt`."""
    name = re.split(r"[/\\]", path.rstrip("/\\"))[-1]
    named = _STEP.findall(name)
    numbers = named or _NUMBER.findall(re.sub(r"\.\w+$", "", name))
    return int(numbers[-1]) if numbers else None


def family_of(path: str) -> str:
    """What checkpoints of one run have in common: the path with its numbers left out."""
    trimmed = path.rstrip("/\\")
    head = re.match(r"(.*[/\\])?", trimmed)
    folder = head.group(0) if head else ""
    return folder + _NUMBER.sub("#", trimmed[len(folder) :])


def in_order_of_time(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Oldest first: by the step in the name within one family, else by the time of the last change."""
    one_family = len({family_of(checkpoint.path) for checkpoint in checkpoints}) == 1
    steps = [step_in_name(checkpoint.path) for checkpoint in checkpoints]
    if one_family and None not in steps:
        return sorted(checkpoints, key=lambda c: (step_in_name(c.path) or 0, c.modified))
    return sorted(checkpoints, key=lambda c: c.modified)


# ---- saves between which nothing was trained: the run went on, and the optimizer's own counter did not
#
# A script that replaces a bad loss by a constant, or skips every batch, still counts its epochs and saves. Adam and
# most other optimizers count the updates that they made, and this count is in the checkpoint.


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
