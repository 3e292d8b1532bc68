"""Numbers that are read many at a time have the bits that `float` gives."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nantrap.record.template import MARGIN, read_decimals


def read(*tokens: str) -> list[float | None]:
    """The tokens as numbers; `None` for what is not one."""
    text = "\n" * MARGIN + ",".join(tokens) + "\n" * MARGIN
    lengths = np.array([len(token) for token in tokens])
    start = MARGIN + np.cumsum(lengths + 1) - lengths - 1
    values, fine = read_decimals(np.frombuffer(text.encode(), dtype=np.uint8), start, start + lengths)
    return [float(value) if good else None for value, good in zip(values, fine, strict=True)]


def bits(number: float) -> bytes:
    """The number as its bytes: tells -0.0 from 0.0."""
    return struct.pack("<d", number)


FINITE = st.floats(allow_nan=False, allow_infinity=False)
SPELT = st.one_of(
    FINITE.map(repr),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(10**25), 10**25).map(str),
    st.tuples(FINITE, st.integers(0, 21)).map(lambda pair: f"{pair[0]:.{pair[1]}e}"),
    st.tuples(st.floats(-1e6, 1e6), st.integers(0, 25)).map(lambda pair: f"{pair[0]:.{pair[1]}f}"),
    st.tuples(FINITE, st.integers(1, 20)).map(lambda pair: f"{pair[0]:.{pair[1]}g}"),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(SPELT, min_size=1, max_size=40))
@example(["9007199254740993", "9007199254740992.5", "0.1", "-0.0", "1e-05", "1E+22", "123456789012345678"])
@example(["0.00012345678901234567", "18446744073709551615", "18446744073709551616", "1e308", "4.9e-324", "2e0"])
def test_the_bits_of_float(tokens: list[str]) -> None:
    found = read(*tokens)
    assert [bits(number) if number is not None else None for number in found] == [bits(float(t)) for t in tokens]


@settings(max_examples=200, deadline=None)
@given(st.integers(2**52, 2**53 - 1), st.integers(0, 9))
def test_half_way_between_two_values_is_rounded_to_even(whole: int, doublings: int) -> None:
    token = str((2 * whole + 1) << doublings)
    assert read(token) == [float(token)]


def test_nan_and_inf_in_every_spelling_of_a_journal() -> None:
    found = [str(number) for number in read("NaN", '"nan"', '"inf"', '"-inf"', "Infinity", "-Infinity")]
    assert found == ["nan", "nan", "inf", "-inf", "inf", "-inf"]


@pytest.mark.parametrize(
    "token", ["1_0", ".5", "--1", "1e", "e5", "+1", "-", "1.2.3", "true", "null", "0x10", "1-2", "5 "]
)
def test_what_is_not_a_number_is_refused_alone(token: str) -> None:
    assert read("1.5", token, "2.5") == [1.5, None, 2.5]
