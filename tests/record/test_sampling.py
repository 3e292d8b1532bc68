"""Down-sampling: spikes and gaps survive."""

from __future__ import annotations

import numpy as np

from nantrap.record import downsample, envelope


def test_few_points_are_all_kept() -> None:
    step = np.arange(10)
    assert downsample(step, step.astype(np.float64), points=10).tolist() == list(range(10))


def test_a_spike_a_dip_a_gap_and_a_lone_value_survive() -> None:
    step = np.arange(1_000_000)
    value = 2.0 + np.sin(step / 1e4)
    value[123_456], value[654_321] = 1e6, -1e6
    value[400_000] = np.nan
    value[700_000:800_000] = np.nan
    value[750_000] = 3.0
    kept = downsample(step, value, points=1000)
    assert len(kept) <= 1000
    assert (np.diff(kept) > 0).all()
    assert {0, 123_456, 654_321, 400_000, 700_000, 750_000, 999_999} <= set(kept.tolist())
    inside = kept[(kept > 700_000) & (kept < 800_000) & (kept != 750_000)]
    assert len(inside)
    assert np.isnan(value[inside]).all()


def test_nothing_finite() -> None:
    value = np.full(5000, np.inf)
    kept = downsample(np.arange(5000), value, points=100)
    assert 0 in kept
    assert 4999 in kept


def test_an_envelope() -> None:
    step = np.array([0, 1, 2, 3, 10, 11])
    value = np.array([1.0, 5.0, np.nan, 3.0, np.inf, np.nan])
    found = envelope(step, value, buckets=3)
    assert found.left.tolist() == [0, 4, 8]
    np.testing.assert_array_equal(found.low, [1, np.nan, np.nan])
    np.testing.assert_array_equal(found.median, [3, np.nan, np.nan])
    np.testing.assert_array_equal(found.high, [5, np.nan, np.nan])
    assert found.count.tolist() == [4, 0, 2]
    assert found.nonfinite.tolist() == [1, 0, 2]
    assert len(envelope(step[:0], value[:0]).left) == 0
