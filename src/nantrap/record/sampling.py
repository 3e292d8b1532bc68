"""A million steps in a few hundred buckets: each keeps its smallest, middle and largest value, so no spike is lost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nantrap.record.columns import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Envelope:
    """Values in buckets of equal width. `low`, `middle` and `high` are NaN where a bucket holds nothing finite.

    Attributes:
        first: the step at which the first bucket begins.
        width: steps of a bucket.
        low: the smallest finite value.
        middle: a value that occurred, with half of the finite ones at or below it.
        high: the largest finite value.
        finite: how many values of the bucket are finite.
        nonfinite: how many are not.
    """

    first: int
    width: float
    low: Floats
    middle: Floats
    high: Floats
    finite: Ints
    nonfinite: Ints

    def __len__(self) -> int:
        return len(self.low)

    @property
    def left(self) -> Floats:
        """Where each bucket begins, in steps."""
        return np.asarray(self.first + np.arange(len(self)) * self.width, dtype=np.float64)


def envelope(step: Ints, value: Floats, *, first: int, last: int, most: int) -> Envelope:
    """Sort the values of steps `first` to `last` into at most `most` buckets of equal width."""
    span = max(1, last - first + 1)
    number = min(most, span)
    order = np.argsort(step, kind="stable") if len(step) > 1 and bool(np.any(step[1:] < step[:-1])) else None
    if order is not None:  # a run that was started again in the same folder
        step, value = step[order], value[order]
    inside = (step >= first) & (step <= last)
    step, value = step[inside], value[inside]
    finite = np.isfinite(value)
    edges = first + np.ceil(np.arange(number + 1) * (span / number)).astype(np.int64)
    bounds = np.searchsorted(step, edges)
    good_bounds = np.concatenate([[0], np.cumsum(finite)])[bounds]
    good = value[finite]
    low, middle, high = (np.full(number, np.nan) for _ in range(3))
    for bucket in range(number):
        part = good[good_bounds[bucket] : good_bounds[bucket + 1]]
        if len(part):
            low[bucket], high[bucket] = part.min(), part.max()
            half = (len(part) - 1) // 2
            middle[bucket] = part[0] if len(part) == 1 else np.partition(part, half)[half]
    counts = np.diff(good_bounds)
    return Envelope(first, span / number, low, middle, high, counts, np.diff(bounds) - counts)
