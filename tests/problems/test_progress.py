"""The bar: late, and only on a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest

from nantrap.problems import progress
from nantrap.problems.progress import ProgressBar


class Terminal(io.StringIO):
    """A stream that says whether it is a terminal."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


class Drawn:
    """What rich would draw."""

    def __init__(self) -> None:
        self.units: list[str] = []
        self.updates: list[dict[str, int]] = []

    def update(self, task: int, **values: int) -> None:
        self.updates.append(values)

    def stop(self) -> None:
        self.units.append("end")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """The bars draw here; `clock` gives the time."""
    found = Drawn()

    def start(bar: Any, unit: str, total: int | None) -> None:
        found.units.append(unit)
        bar._unit, bar._bar, bar._task = unit, found, 0

    monkeypatch.setattr(ProgressBar, "_start", start)
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_bar_appears_after_a_second_on_a_terminal(drawn: Drawn, clock: list[float], is_terminal: bool) -> None:
    with ProgressBar(Terminal(is_terminal)) as bar:
        bar.add_total(100)
        bar.add_bytes(10)
        assert not drawn.updates
        clock[0] = 1.5
        bar.add_bytes(10)
        bar.add_bytes(10)
        assert drawn.updates == ([{"total": 100, "completed": 20}] if is_terminal else []), "at most 20 times a second"
    assert drawn.units == (["bytes", "end"] if is_terminal else [])


def test_bytes_and_then_samples_are_two_bars(drawn: Drawn, clock: list[float]) -> None:
    with ProgressBar(Terminal(True)) as bar:
        reading = bar.reading()
        clock[0] = 2.0
        reading.on_bytes(10)
        clock[0] = 3.0
        reading.on_samples(4, None)
    assert drawn.units == ["bytes", "end", "samples", "end"]
    assert drawn.updates[-1] == {"total": None, "completed": 4}


def test_every_check_is_counted_at_once(drawn: Drawn, clock: list[float]) -> None:
    with ProgressBar(Terminal(True), after=0.0) as bar:
        for done in range(3):
            bar.show_checks(done, 26)
    assert [update["completed"] for update in drawn.updates] == [0, 1, 2]
