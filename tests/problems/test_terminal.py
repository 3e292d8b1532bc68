"""Lines on a terminal: colours where they are wanted, and letters where a stream cannot encode a sign."""

from __future__ import annotations

import io

import pytest

from nantrap.problems import Problem, worst
from nantrap.problems.terminal import Printer, check_lines, first_problems, help_lines, marked

BAD = Problem("loss_falls", "error", "the loss rises\x1b[2J", "lower it")
GOOD = Problem("spikes", "ok", "3 × nothing", "not shown")


LONG = "none of the 40 losses of this run reached the weights, and the last one is 0.25"


class Terminal(io.TextIOWrapper):
    """A terminal with an encoding."""

    def __init__(self, encoding: str) -> None:
        super().__init__(io.BytesIO(), encoding=encoding)

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode(self.encoding)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("name", "value", "coloured"),
    [("TERM", "xterm", True), ("TERM", "dumb", False), ("NO_COLOR", "1", False), ("NO_COLOR", "", True)],
)
def test_colours(name: str, value: str, coloured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    stream = Terminal("utf-8")
    Printer(stream).line("a ", ("b", "bold red"), ("", "dim"))
    assert stream.text() == ("a \x1b[1;31mb\x1b[0m\n" if coloured else "a b\n")


def test_a_pipe_has_no_colours_unless_they_are_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    for expected in ("b\n", "\x1b[32mb\x1b[0m\n"):
        stream = io.StringIO()
        Printer(stream).line(("b", "green"))
        assert stream.getvalue() == expected
        monkeypatch.setenv("FORCE_COLOR", "1")


def test_signs_that_a_stream_cannot_encode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal("ascii")
    Printer(stream).lines([*check_lines(BAD, "  "), *check_lines(GOOD, ""), (marked("unjudged", "é"),)])
    assert stream.text() == (
        "  x loss_falls   the loss rises\\x1b[2J\n    help: lower it\nok spikes       3 x nothing\n? \\xe9\n"
    )


def test_the_first_problems_and_what_helps() -> None:
    lines = list(first_problems([BAD, BAD, GOOD], lambda problem: (problem.code,), most=1))
    assert lines == [("    ", "loss_falls"), ("    and 2 more (--json lists all)",)]
    assert [line[1] for line in help_lines([BAD, GOOD, BAD])] == ["[loss_falls]: lower it", "[spikes]: not shown"]


def test_the_worst() -> None:
    assert worst([GOOD, BAD]) == "error"
    assert worst([GOOD]) == "ok"
    assert worst([]) == "unjudged"


def test_a_terminal_gets_long_lines_wrapped_below_their_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal("utf-8")
    Printer(out).lines(check_lines(Problem("loss_finite", "warning", LONG, LONG), "  "))
    monkeypatch.setenv("COLUMNS", "60")
    Printer(out).line(("a label of more than 24 characters", "bold"), f": {LONG}")
    Printer(out).line(("12 | ", "blue"), (f"{LONG} # code is not wrapped", ""))
    lines = out.text().splitlines()
    assert lines[:3] == [
        "  ▲ loss_finite  none of the 40 losses of this run",
        "                 reached the weights, and the last",
        "                 one is 0.25",
    ]
    assert lines[-3:-1] == [
        "a label of more than 24 characters: none of the 40 losses of",
        "    this run reached the weights, and the last one is 0.25",
    ]
    assert lines[-1] == f"12 | {LONG} # code is not wrapped"


def test_a_pipe_gets_each_line_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    out = io.StringIO()
    Printer(out).line("  ", f"{LONG}, {LONG}")
    assert out.getvalue() == f"  {LONG}, {LONG}\n"
