"""The picture of losses: what is drawn, where a curve ends, and that nothing in it can be markup."""

from __future__ import annotations

import itertools
import math
from xml.etree import ElementTree

import pytest

from nantrap_systems.curves import Curve, draw_curves

SVG = "{http://www.w3.org/2000/svg}"
NAN = math.nan


def drawn(*curves: Curve, title: str = "losses") -> ElementTree.Element:
    return ElementTree.fromstring(draw_curves(curves, title=title))


def texts(picture: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in picture.iter(f"{SVG}text")]


def lines(picture: ElementTree.Element) -> list[list[tuple[float, float]]]:
    found = []
    for element in picture.iter(f"{SVG}polyline"):
        pairs = [pair.split(",") for pair in element.attrib["points"].split()]
        found.append([(float(x), float(y)) for x, y in pairs])
    return found


def test_a_falling_loss_falls_in_the_picture_too() -> None:
    [[first, *_, last]] = lines(drawn(Curve("a", [3.0, 2.0, 1.0])))
    assert first[0] < last[0]
    assert first[1] < last[1]  # the origin is at the top


def test_the_picture_is_as_wide_as_its_longest_label() -> None:
    assert drawn(Curve("a", [1.0])).attrib["viewBox"] == "0 0 800 330"
    wide = drawn(Curve("what was tried first, at length", [1.0, NAN]))
    assert wide.attrib["width"] == wide.find(f"{SVG}rect").attrib["width"]  # type: ignore[union-attr]
    (label,) = (each for each in wide.iter(f"{SVG}text") if (each.text or "").endswith(": NaN from 1"))
    assert float(wide.attrib["width"]) >= float(label.attrib["x"]) + 7 * len(label.text or "")


def test_a_curve_that_is_lost_ends_in_a_cross_and_says_where() -> None:
    picture = drawn(Curve("plain", [3.0, 2.0, NAN, NAN]), Curve("clean", [3.0, 2.0, 1.0, 0.5]))
    assert len(lines(picture)[0]) == 2
    assert "plain: NaN from 2" in texts(picture)
    assert "clean" in texts(picture)


def test_one_bad_value_in_the_middle_is_not_the_end() -> None:
    picture = drawn(Curve("a", [3.0, NAN, 2.0, 1.0]))
    assert [len(line) for line in lines(picture)] == [3]
    assert "a" in texts(picture)


def test_skipped_steps_are_counted_and_left_out() -> None:
    picture = drawn(Curve("nantrap", [3.0, NAN, 900.0, 1.0], skipped=frozenset({1, 2})))
    assert [len(line) for line in lines(picture)] == [2]
    assert "nantrap: 2 skipped" in texts(picture)


def test_a_run_that_was_never_finite_is_still_named() -> None:
    picture = drawn(Curve("plain", [NAN, NAN], note="weights NaN"))
    assert lines(picture) == []
    assert "plain: NaN from 0" in texts(picture)
    assert "a: weights NaN" in texts(drawn(Curve("a", [1.0, 2.0], note="weights NaN")))


@pytest.mark.parametrize(("values", "axis"), [([1000.0, 1.0], "loss (logarithmic)"), ([3.0, 1.0], "loss"),
                                              ([1000.0, -1.0], "loss"), ([2.0, 2.0], "loss")])  # fmt: skip
def test_a_wide_range_of_positive_values_is_drawn_logarithmically(values: list[float], axis: str) -> None:
    assert axis in texts(drawn(Curve("a", values)))


def test_names_do_not_cover_each_other_and_stay_inside() -> None:
    picture = drawn(*(Curve(f"run {i}", [2.0, 1.0]) for i in range(12)))
    places = sorted(float(t.attrib["y"]) for t in picture.iter(f"{SVG}text") if (t.text or "").startswith("run "))
    assert all(b - a >= 15.9 for a, b in itertools.pairwise(places))
    assert places[-1] <= float(picture.attrib["height"])
    assert places[0] >= 0


def test_names_are_text_and_not_markup() -> None:
    picture = drawn(Curve("<script>alert(1)</script>", [1.0, 2.0]), title="a & b <b>")
    assert "<script>alert(1)</script>" in texts(picture)
    assert not list(picture.iter(f"{SVG}script"))


@pytest.mark.parametrize("values", [[], [1.0], [1e308, -1e308], [1e-300, 1e300]])
def test_any_values_make_a_picture(values: list[float]) -> None:
    drawn(Curve("a", values))
