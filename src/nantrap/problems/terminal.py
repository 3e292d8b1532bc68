"""Lines for a person, with colours on a terminal. rich would take a quarter of a short command's time to import."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TextIO, TypeVar

from nantrap.incident.wording import visible
from nantrap.problems.problem import Problem, Severity

Part = str | tuple[str, str]
"""Plain text, or text and its style (`bold red`; "" for none). Only plain text is wrapped."""
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
_SHORTEST: Final = 20
_ATOM: Final = re.compile(
    r"`[^`]*`\S*"  # quoted code
    r"|[\w.\[\]]+\([^()\n]{0,60}\)[^\s]*"  # a call with its arguments
    r"|\d[\d,.]* of \d[\d,.]*"  # a count keeps its total
    r"|\S+"
)


class Printer:
    """Prints lines on a stream.

    On a terminal they have colours, and the words at the end of a line that is too long are wrapped below themselves.
    Letters or escapes stand for what the stream cannot encode.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        terminal = is_screen(stream) and os.environ.get("TERM") != "dumb"
        self._colour = (terminal or "FORCE_COLOR" in os.environ) and not os.environ.get("NO_COLOR")
        self._wraps = is_screen(stream)

    def line(self, *parts: Part) -> None:
        """Print one line, or several where it is wider than the terminal."""
        for line in _folded(parts, self.width) if self._wraps else (parts,):
            self._print(line)

    def _print(self, parts: Line) -> None:
        """Write one line, with letters or escapes for what the stream cannot encode."""
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
        return columns(self._stream)

    def _styled(self, text: str, style: str) -> str:
        return styled(text, style) if self._colour else text


def is_screen(stream: TextIO) -> bool:
    """Whether the lines of a stream have a certain width: a terminal, with colours or without (`TERM=dumb`)."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # closed, or replaced by something that is no file
        return False


def columns(stream: TextIO) -> int:
    """Columns of the terminal of a stream, 80 where it has none; `COLUMNS` overrides it."""
    found = 0
    if not os.environ.get("COLUMNS", "").isdigit():
        with contextlib.suppress(OSError, ValueError, AttributeError):  # standard output may be a pipe, this one not
            found = os.get_terminal_size(stream.fileno()).columns
    return found or shutil.get_terminal_size().columns


def styled(text: str, style: str) -> str:
    """Text with the escape sequences of a style, `bold red`."""
    if not text or not style:
        return text
    return f"\x1b[{';'.join(_ESCAPES[word] for word in style.split())}m{text}\x1b[0m"


# ---- line wrapping: at spaces only, never inside code, and no single word on the last line


def wrapped(text: str, width: int | None, *, first: int | None = None) -> list[str]:
    """The text in lines of at most `width` characters. A word that is longer stays whole.

    Args:
        text: words; runs of spaces between them count as one.
        width: of every line; `None` gives one line.
        first: of the first line, where it differs.
    """
    if width is None or len(text) <= (width if first is None else first):
        return [text]
    rest = max(width, _SHORTEST)
    room = max(rest if first is None else first, _SHORTEST)
    lines: list[list[str]] = [[]]
    used = 0
    for atom in _atoms(text, rest):
        if lines[-1] and used + 1 + len(atom) > room:
            lines.append([])
            used, room = 0, rest
        used += len(atom) + (1 if lines[-1] else 0)
        lines[-1].append(atom)
    if len(lines) > 1 and len(lines[-1]) == 1 and len(lines[-2]) > 2 and len(lines[-1][0]) < 12:
        word = lines[-2][-1]
        if len(word) + 1 + len(lines[-1][0]) <= rest:
            lines[-1].insert(0, lines[-2].pop())
    return [" ".join(line) for line in lines]


def _atoms(text: str, width: int) -> list[str]:
    """What must not be broken, as long as it fits on one line."""
    atoms: list[str] = []
    for match in _ATOM.finditer(text):
        found = match[0]
        atoms += [found] if len(found) <= width else found.split()
    return atoms


def _folded(parts: Line, width: int) -> Iterator[Line]:
    """Wrap the last part of a line below itself, or below the line's indentation where that leaves too little room."""
    texts = [part if isinstance(part, str) else part[0] for part in parts]
    if sum(map(len, texts)) <= width or not isinstance(parts[-1], str):
        yield parts
        return
    words = texts[-1].lstrip(": ")
    gap = texts[-1][: len(texts[-1]) - len(words)]
    begin = len("".join(texts)) - len(words)
    text = "".join(texts)
    hanging = begin if begin <= 2 * width // 5 else len(text) - len(text.lstrip()) + 4
    first, *rest = wrapped(words, width - hanging, first=width - begin)
    yield *parts[:-1], gap + first
    yield from ((" " * hanging + line,) for line in rest)


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
        yield (f"{problem.place.line:>5} | ", "blue"), (shown, "")
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
