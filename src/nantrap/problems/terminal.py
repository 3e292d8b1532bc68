"""Lines for a person, with colours on a terminal. rich would take a quarter of a short command's time to import."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TextIO, TypeVar

from nantrap.incident.wording import visible
from nantrap.problems.problem import Problem, Severity

Part = str | tuple[str, str]
"""Plain text, or text and its style, `bold red`."""
Line = tuple[Part, ...]
Found = TypeVar("Found", bound=Problem)

STYLES: Final[dict[Severity, str]] = {
    "error": "bold red", "warning": "bold yellow", "note": "cyan", "ok": "bold green", "unjudged": "dim",
}  # fmt: skip
_MARKS: Final[dict[Severity, tuple[str, str]]] = {
    "ok": ("✓", "green"), "note": ("▲", "yellow"), "warning": ("▲", "yellow"), "error": ("✖", "red"),
    "unjudged": ("?", "dim"),
}  # fmt: skip
_PLAIN_SIGNS: Final = (("✓", "ok"), ("▲", "!"), ("✖", "x"), ("×", "x"))
_ESCAPES: Final = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"
}  # fmt: skip
_LONGEST_SOURCE_LINE: Final = 160


class Printer:
    """Prints lines on a stream, with colours on a terminal, and with letters or escapes for what it cannot encode."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._colour = (terminal or "FORCE_COLOR" in os.environ) and not os.environ.get("NO_COLOR")

    def line(self, *parts: Part) -> None:
        """Print one line."""
        text = "".join(part if isinstance(part, str) else self._styled(*part) for part in parts)
        encoding = self._stream.encoding or "utf-8"
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            for sign, plain in _PLAIN_SIGNS:
                text = text.replace(sign, plain)
        print(text.encode(encoding, "backslashreplace").decode(encoding), file=self._stream)

    def lines(self, lines: Iterable[Line]) -> None:
        """Print several lines."""
        for line in lines:
            self.line(*line)

    @property
    def width(self) -> int:
        """Columns of the terminal; `COLUMNS` overrides it."""
        columns = 0
        if not os.environ.get("COLUMNS", "").isdigit():
            with contextlib.suppress(OSError, ValueError):
                columns = os.get_terminal_size(self._stream.fileno()).columns
        return columns or shutil.get_terminal_size().columns

    def _styled(self, text: str, style: str) -> str:
        if not self._colour or not text:
            return text
        return f"\x1b[{';'.join(_ESCAPES[word] for word in style.split())}m{text}\x1b[0m"


def source_problem(problem: Problem, word: str, source: str) -> Iterator[Line]:
    """A problem of a source file: what, where, the source line and the fix.

    Args:
        problem: what was found.
        word: how bad it is, in the words of the command.
        source: the text of its line; empty if it cannot be read.
    """
    yield (
        (word, STYLES[problem.severity]),
        (f"[{problem.code}]", "bold"),
        f" {problem.title}: {visible(problem.message)}",
    )
    yield ("  --> ", "blue"), f"{visible(problem.place.file)}:{problem.place.line}"
    if source.strip():
        shown = visible(source.rstrip().expandtabs(4))[:_LONGEST_SOURCE_LINE]
        yield (f"{problem.place.line:>5} | ", "blue"), shown
    yield ("  fix", "bold cyan"), f": {visible(problem.fix)}"


def first_problems(problems: Sequence[Found], line_of: Callable[[Found], Line], *, most: int) -> Iterator[Line]:
    """The first problems of one file, each as `line_of` gives it, and how many more there are."""
    for problem in problems[:most]:
        yield "    ", *line_of(problem)
    if len(problems) > most:
        yield (f"    and {len(problems) - most:,} more (--json lists all)",)


def help_lines(problems: Iterable[Problem]) -> Iterator[Line]:
    """What helps against the problems, each text once."""
    for code, fix in dict.fromkeys((problem.code, problem.fix) for problem in problems):
        yield ("help", "cyan"), f"[{code}]: {fix}"


def check_lines(problem: Problem, indent: str) -> Iterator[Line]:
    """A check that passed, failed or was not made, with its sign, and what to do if it failed."""
    yield indent, marked(problem.severity, f"{problem.code:<12}"), f" {visible(problem.message)}"
    if problem.fix and problem.severity in ("warning", "error"):
        yield (f"{indent}  help: {visible(problem.fix)}",)


def marked(severity: Severity, words: str) -> Part:
    """Words after the sign of a severity, in its colour."""
    sign, style = _MARKS[severity]
    return f"{sign} {words}", style
