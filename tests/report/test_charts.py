"""Columns, axes and curves: spikes survive, NaN is a gap, lone values stay visible."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nantrap.record import envelope
from nantrap.report.charts import (
    Range,
    Scale,
    curve,
    round_numbers,
    rug,
    scale_for,
    spark,
    spark_paths,
    step_texts,
    tick_text,
)

NAN = math.nan


def of(values: list[float], most: int = 400):  # type: ignore[no-untyped-def]
    return envelope(np.arange(len(values)), np.array(values, dtype=float), first=0, last=len(values) - 1, most=most)


def test_a_gap_is_hatched_and_not_joined() -> None:
    scale = Scale(0.0, 4.0, 100.0)
    drawn = str(curve(of([1.0, 2.0, NAN, 3.0, 4.0]), scale))
    assert drawn.count('class="hatch"') == 1
    assert drawn.count('<path class="l l1" d="M') == 2


def test_a_lone_value_between_gaps_stays_visible() -> None:
    drawn = str(curve(of([NAN, 2.0, NAN]), Scale(0.0, 4.0, 100.0)))
    assert '<path class="l l1" d="M333.3 50.0H666.7"/>' in drawn


def test_columns_without_any_value_do_not_break_a_line() -> None:
    found = envelope(np.array([0, 50, 99]), np.array([1.0, 2.0, 3.0]), first=0, last=99, most=100)
    drawn = str(curve(found, Scale(0.0, 4.0, 100.0), band=False))
    assert drawn.count("<path") == 1
    assert "hatch" not in drawn


def test_an_axis_for_losses_is_logarithmic_and_one_with_negative_values_is_not() -> None:
    assert scale_for([of([10.0, 1.0, 0.1])], height=100).logarithmic
    assert not scale_for([of([-1.0, 1.0, 100.0])], height=100).logarithmic
    assert not scale_for([of([3.0, 2.0])], height=100).logarithmic
    zero = scale_for([of([0.0, 1.0, 100.0])], height=100)
    assert zero.logarithmic
    assert zero.floor
    assert zero(0.0) > zero(1.0)


def test_one_absurd_value_does_not_flatten_the_rest() -> None:
    scale = scale_for([of([*(-0.1 * (i % 7) for i in range(200)), 1e30])], height=100)
    assert scale.clipped
    assert abs(scale(-0.6) - scale(0.0)) > 20
    assert scale(1e30) == 0.0


@pytest.mark.parametrize("values", [[], [NAN], [0.0], [1e-320, 1e308], [-1e308, 1e308], [5.0, 5.0]])
def test_any_values_have_an_axis(values: list[float]) -> None:
    found = [of(values)] if values else []
    scale = scale_for(found, height=100)
    assert all(0 <= scale(tick) <= 100 for tick in scale.ticks())
    for column in found:
        curve(column, scale)


def test_a_limit_is_on_the_axis_at_its_own_height() -> None:
    """A clip at 1 above a constant norm of 0.5 was drawn at 0.55."""
    scale = scale_for([of([0.5] * 100)], height=100, include=[1.0])
    assert scale.low <= 0.5 < 1.0 <= scale.high
    assert not scale.clipped
    absurd = scale_for([of([*(-0.1 * (i % 7) for i in range(200)), 1e30])], height=100, include=[2.0])
    assert absurd.clipped
    assert 2.0 <= absurd.high < 10.0


def test_ticks_are_round() -> None:
    assert [round(n, 9) for n in round_numbers(0.0, 1.0, 5)] == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert [tick_text(n) for n in (0, 0.05, 4e-4, 1.0, 30_000.0, 1e5, -2.5e-7)] == [
        "0", "0.05", "4e-4", "1", "30,000", "1e5", "-2.5e-7",
    ]  # fmt: skip
    assert step_texts([0, 2000, 4500]) == ["0", "2k", "4.5k"]
    assert step_texts([12_380, 12_400]) == ["12,380", "12,400"]


def test_many_ticks_at_one_place_are_one() -> None:
    assert str(rug(range(100_000), Range(0, 99_999), 100.0)).count("M") <= 1001


def test_a_spark_marks_what_is_not_finite() -> None:
    assert 'class="l lbad"' in str(spark([1.0, NAN, 2.0]))
    assert 'd=""' in str(spark([NAN, NAN]))  # no curve


def test_a_spark_of_skipped_steps_between_others_keeps_its_curve() -> None:
    line, ticks = spark_paths([NAN if step % 2 else 1.0 + step for step in range(600)])
    assert (line.count("M"), line.count("L"), ticks.count("M")) == (1, 59, 60)
    line, ticks = spark_paths([1.0] * 300 + [NAN] * 100 + [2.0] * 200)
    assert (line.count("M"), ticks.count("M")) == (2, 10)
    assert spark_paths([]) == ("", "")
