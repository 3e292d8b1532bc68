"""Sampling: spikes survive, and what is not finite is counted."""

from __future__ import annotations

import math

import numpy as np

from nantrap.record import envelope


def test_one_step_among_a_million_stays_visible() -> None:
    values = np.ones(1_000_000)
    values[654_321] = 40.0
    values[123_456] = -7.0
    found = envelope(np.arange(1_000_000), values, first=0, last=999_999, most=400)
    assert len(found) == 400
    assert found.high.max() == 40.0
    assert found.low.min() == -7.0
    assert found.high[654_321 // 2500] == 40.0
    assert set(found.middle) == {1.0}
    assert int(found.finite.sum()) == 1_000_000


def test_values_that_are_not_finite_are_counted_and_never_drawn() -> None:
    value = np.array([1.0, math.nan, math.inf, 2.0, math.nan, math.nan])
    found = envelope(np.arange(6), value, first=0, last=5, most=3)
    assert found.finite.tolist() == [1, 1, 0]
    assert found.nonfinite.tolist() == [1, 1, 2]
    assert math.isnan(found.middle[2])


def test_a_run_started_again_is_sorted() -> None:
    step = np.array([0, 1, 2, 1, 2, 3])
    found = envelope(step, np.array([1.0, 2.0, 3.0, 20.0, 30.0, 40.0]), first=0, last=3, most=4)
    assert found.high.tolist() == [1.0, 20.0, 30.0, 40.0]
    assert found.low.tolist() == [1.0, 2.0, 3.0, 40.0]


def test_steps_outside_of_the_range_are_left_out() -> None:
    found = envelope(np.arange(10), np.arange(10.0), first=3, last=5, most=10)
    assert found.middle.tolist() == [3.0, 4.0, 5.0]


def test_buckets_without_values() -> None:
    step = np.array([0, 1, 2, 3, 10, 11])
    value = np.array([1.0, 5.0, np.nan, 3.0, np.inf, np.nan])
    found = envelope(step, value, first=0, last=11, most=3)
    assert found.left.tolist() == [0, 4, 8]
    np.testing.assert_array_equal(found.low, [1, np.nan, np.nan])
    np.testing.assert_array_equal(found.middle, [3, np.nan, np.nan])
    np.testing.assert_array_equal(found.high, [5, np.nan, np.nan])
    assert (found.finite + found.nonfinite).tolist() == [4, 0, 2]
    assert found.nonfinite.tolist() == [1, 0, 2]


def test_no_values_at_all() -> None:
    found = envelope(np.array([], dtype=np.int64), np.array([]), first=0, last=9, most=5)
    assert found.finite.tolist() == [0] * 5
    assert np.isnan(found.middle).all()
