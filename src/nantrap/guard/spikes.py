"""A spike statistic that one NaN cannot poison: median and MAD of the last finite values.

A mean and a standard deviation are moved by the very value they should judge, and a single NaN makes them NaN for
good. The median and the median absolute deviation ignore up to half of the window, non-finite values never enter,
and a value that was called a spike enters clamped, so that a new level is accepted after a while.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

_MAD_TO_SIGMA = 1.4826
_RELATIVE_FLOOR = 0.02


class SpikeDetector:
    """Holds the last `window` values, in order of arrival and sorted."""

    def __init__(self, *, window: int, threshold: float, warmup: int) -> None:
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._window = window
        self._threshold = threshold
        self._warmup = warmup
        self._seen = 0
        self._limit = math.inf
        self._median = 0.0
        self._sigma = 0.0

    def score(self, value: float) -> float | None:
        """How many robust standard deviations `value` lies above the median, if that makes it a spike; else `None`."""
        if not math.isfinite(value) or self._seen < self._warmup or value <= self._limit:
            return None
        self._measure()
        score = (value - self._median) / self._sigma
        return score if score > self._threshold else None

    def add(self, value: float) -> None:
        """Let an applied step's value into the statistic."""
        if not math.isfinite(value):
            return
        self._seen += 1
        value = min(value, self._limit)
        if len(self._recent) == self._window:
            oldest = self._recent.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._recent.append(value)
        insort(self._sorted, value)
        # The limit is measured anew now and then only: between, it is one comparison a step.
        if self._seen % 16 == 0 and self._seen >= self._warmup // 2:
            self._measure()

    def _measure(self) -> None:
        middle = len(self._sorted) // 2
        self._median = self._sorted[middle]
        deviations = sorted(abs(value - self._median) for value in self._sorted)
        spread = _MAD_TO_SIGMA * deviations[middle]
        # a converged run has no spread: a change below two percent is never a spike
        self._sigma = max(spread, _RELATIVE_FLOOR * abs(self._median), 1e-12)
        self._limit = self._median + self._threshold * self._sigma
