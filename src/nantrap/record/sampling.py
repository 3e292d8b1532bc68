"""Fewer points that show the same curve: what is drawn of a million steps keeps every spike and every NaN gap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nantrap.record.columns import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Envelope:
    """A column in buckets of equal width: arrays with one entry per bucket; NaN where a bucket has no finite value.

    Attributes:
        left: the step at which the bucket begins.
        low: the least finite value.
        median: the median of the finite values.
        high: the greatest finite value.
        count: the values in the bucket, finite or not.
        nonfinite: those that are NaN or Inf.
    """

    left: Floats
    low: Floats
    median: Floats
    high: Floats
    count: Ints
    nonfinite: Ints


def downsample(step: Ints, value: Floats, *, points: int = 2000) -> Ints:
    """Indices, in order, of at most about `points` values that draw the same curve.

    Each bucket of neighbours keeps its first, last, least and greatest finite value, so that a spike of one step among
    a million is still there, and its first value that is not finite, so that a gap stays a gap. All values are kept
    when they are few enough.
    """
    count = len(value)
    if count <= points:
        return np.arange(count, dtype=np.int64)
    buckets = max(1, points // 5)
    edge = np.linspace(0, count, buckets + 1).astype(np.int64)[:-1]
    bucket = np.repeat(np.arange(buckets), np.diff(np.append(edge, count)))
    finite = np.isfinite(value)
    low = np.minimum.reduceat(np.where(finite, value, np.inf), edge)
    high = np.maximum.reduceat(np.where(finite, value, -np.inf), edge)
    wanted = (~finite, finite & (value == low[bucket]), finite & (value == high[bucket]), finite)
    kept = [_first(mask, bucket) for mask in wanted]
    kept.append(count - 1 - _first(finite[::-1], bucket[::-1]))
    kept.append(np.array([0, count - 1]))
    return np.unique(np.concatenate(kept))


def envelope(step: Ints, value: Floats, *, buckets: int = 800) -> Envelope:
    """The range and the median of the values in `buckets` stretches of equally many steps."""
    if not len(value):
        empty, none = np.empty(0), np.empty(0, dtype=np.int64)
        return Envelope(empty, empty, empty, empty, none, none)
    first, last = float(step.min()), float(step.max())
    buckets = max(1, min(buckets, int(last - first) + 1))
    edges = np.linspace(first, last + 1, buckets + 1)
    place = np.clip(np.searchsorted(edges, step, side="right") - 1, 0, buckets - 1)
    finite = np.isfinite(value)
    count = np.bincount(place, minlength=buckets)
    good = np.bincount(place[finite], minlength=buckets)
    order = np.lexsort((value[finite], place[finite]))
    ordered = value[finite][order]
    start = np.cumsum(good) - good
    some = good > 0
    low, median, high = (np.full(buckets, np.nan) for _ in range(3))
    low[some] = ordered[start[some]]
    high[some] = ordered[start[some] + good[some] - 1]
    # the lower of two middle values: a value that was measured, and no overflow of their sum
    median[some] = ordered[start[some] + (good[some] - 1) // 2]
    return Envelope(edges[:-1], low, median, high, count, count - good)


def _first(mask: NDArray[np.bool_], bucket: Ints) -> Ints:
    """The first index in each bucket where the mask holds."""
    index = np.flatnonzero(mask)
    return index[np.unique(bucket[index], return_index=True)[1]]
