"""Where a step is in a journal, found by halving: a journal of a gigabyte is not read as a whole."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import BinaryIO

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
