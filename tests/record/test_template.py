"""Lines that are read together give the columns that the JSON decoder gives, whatever is between them."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nantrap.record import Run, open_run
from nantrap.record.template import MARGIN, read_decimals


def records(number: int, seed: int) -> Iterator[dict[str, Any]]:
    """Steps of a run: some are skipped, some have other fields, and other lines are between them."""
    rng = random.Random(seed)
    for step in range(number):
        loss, norm = rng.gauss(0, 1), rng.expovariate(1)
        line: dict[str, Any] = {"step": step, "loss": loss, "terms": {"ce": loss / 3}, "grad_norm": norm, "lr": [1e-5]}
        kind = rng.randrange(40)
        if kind == 0:
            yield {"step": step, "kind": "incident_begins", "phase": "forward", "found": ["loss loss"]}
            yield {**line, "loss": "nan", "action": "skip", "incident": {"phase": "forward", "cause": "log_of_zero"}}
        elif kind == 1:
            yield {**line, "action": "apply", "watch": {"alpha": norm}}
        elif kind == 2:
            yield {**line, "loss": "-inf", "grad_norm": None, "action": "apply"}
        elif kind == 3:
            yield {"step": step, "kind": "eval", "metrics": {"eval_loss": loss}}
        else:
            yield {**line, "action": "apply", "by": "guard"}


def same(one: Run, other: Run) -> None:
    """Both runs have the same columns, bit for bit."""
    fast, slow = one.main, other.main
    assert len(fast) == len(slow)
    assert set(fast.names) == set(slow.names)
    for name in fast.names:
        for part in ("row", "step", "value"):
            np.testing.assert_array_equal(getattr(fast[name], part), getattr(slow[name], part), err_msg=name)
    for name in ("action", "by", "incident.cause", "incident.phase"):
        here, there = fast.labels(name), slow.labels(name)
        assert here is not None
        assert there is not None
        np.testing.assert_array_equal(here.row, there.row)
        assert [here.names[i] for i in here.code] == [there.names[i] for i in there.code]
    assert [(m.event, m.step, m.row) for m in one.marks] == [(m.event, m.step, m.row) for m in other.marks]
    assert one.problems == other.problems


@pytest.mark.parametrize("seed", range(5))
def test_the_fast_way_and_the_decoder_agree(tmp_path: Path, seed: int) -> None:
    lines = list(records(700, seed))
    runs = []
    for name, separators in (("fast", (",", ":")), ("slow", (" , ", ": "))):  # a space after a number: no template
        text = [json.dumps(line, separators=separators) for line in lines]
        text[100], text[101], text[400:400] = "not JSON", "[1, 2]", [""]
        folder = tmp_path / name
        folder.mkdir()
        (folder / "journal-r0.jsonl").write_text("\n".join(text) + "\n")
        runs.append(open_run(folder))
    same(*runs)
    assert runs[0].problems[0].endswith("line 101: not a JSON object, skipped")
    assert np.isnan(runs[0].main["loss"].value).any()


def test_a_log_whose_shape_changes_midway(tmp_path: Path) -> None:
    first = [json.dumps({"step": i, "loss": i / 7}) for i in range(100)]
    second = [json.dumps({"loss": i / 7, "step": i, "note": "12"}) for i in range(100, 400)]
    (tmp_path / "log.jsonl").write_text("\n".join(first + second) + "\n")
    main = open_run(tmp_path / "log.jsonl").main
    assert main["loss"].value.tolist() == [i / 7 for i in range(400)]
    assert main.step.tolist() == list(range(400))
    assert main["note"].row.tolist() == list(range(100, 400))
    assert set(main["note"].value.tolist()) == {12.0}


def test_only_the_wanted_columns_are_kept(tmp_path: Path) -> None:
    lines = [json.dumps({"step": i, "loss": i / 7, "other": i, "text": "a"}) for i in range(200)]
    lines[50] = json.dumps({"step": 50, "loss": "nan", "other": 1, "third": 2})
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    main = open_run(tmp_path / "log.jsonl", columns=["loss"]).main
    assert main.names == ("loss",)
    assert np.flatnonzero(np.isnan(main["loss"].value)).tolist() == [50]


# ---- decimal numbers, many at a time


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
