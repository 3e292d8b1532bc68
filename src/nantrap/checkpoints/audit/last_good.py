"""The newest healthy checkpoint of a run, with as few reads as possible.

A run with NaN in its weights does not recover: once a save holds NaN, all later ones do. So the search starts at the
newest and steps back in growing strides (1, 2, 4, …) until it finds a healthy one, then bisects the range between. The
result is healthy and its successor is not, whatever happened in between; one damaged file cannot hide an older good
one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from nantrap.checkpoints.audit.layouts import Checkpoint

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
