"""The limits that several parts share: what lies on which side of them."""

from __future__ import annotations

import math

import pytest
import torch

from nantrap import thresholds


@pytest.mark.parametrize("dtype", thresholds.LARGEST)
def test_the_largest_value_of_a_dtype_is_that_of_torch(dtype: str) -> None:
    assert thresholds.LARGEST[dtype] == torch.finfo(getattr(torch, dtype)).max


def test_the_square_of_a_larger_number_overflows() -> None:
    assert math.isfinite(float(torch.tensor(0.999 * thresholds.SQUARE_OVERFLOWS).square()))
    assert math.isinf(float(torch.tensor(1.001 * thresholds.SQUARE_OVERFLOWS).square()))


def test_a_value_is_absurd_or_large() -> None:
    assert [value for value in (1.0, 9.9e11, 1e12, 1e30) if thresholds.is_absurd(value)] == [1e12, 1e30]
    assert [value for value in (1.0, 1e6, 1.01e6, 1e30) if thresholds.is_large(value)] == [1.01e6, 1e30]


def test_a_stored_weight_is_absurd_for_its_dtype() -> None:
    assert thresholds.is_absurd_weight(6e4, "float16")
    assert not thresholds.is_absurd_weight(5e4, "float16")
    assert not thresholds.is_absurd_weight(1e18, "float32")
    assert thresholds.is_absurd_weight(1e20, "bfloat16")
    assert not thresholds.is_absurd_weight(1e300, "int8")


def test_a_learning_rate_is_absurd() -> None:
    rates = (-1.0, 0.1, 1e9, 1e10, math.inf, math.nan)
    assert [str(rate) for rate in rates if thresholds.is_absurd_rate(rate)] == ["10000000000.0", "inf", "nan"]


def test_a_batch_is_far_outside_of_even_and_of_long_tailed_data() -> None:
    assert thresholds.far_outside([1.0, 2.0, 3.0]) == 60.0
    assert thresholds.far_outside([1.0, 1.0, 10.0]) == 1000.0, "the largest is 10 times the median: 100 times that"


def test_growth_below_the_noise_of_batches_is_none() -> None:
    assert not thresholds.has_grown(7.9)
    assert thresholds.has_grown(8.0)
