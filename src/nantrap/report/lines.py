"""Lines that do not break a progress bar: `tqdm` clears its bar while something is written."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, TextIO

from nantrap.report.terminal import terminal_width
from nantrap.report.wrapping import wrapped


def write_line(text: str, stream: TextIO | None = None) -> None:
    """Write a line (or several) to a stream, standard error by default, around any progress bar that is shown there.

    On a terminal, lines that are too long are wrapped at spaces, with a hanging indent.
    """
    out = stream or sys.stderr
    if _is_terminal(out):
        text = "\n".join(_folded(line, terminal_width()) for line in text.split("\n"))
    with contextlib.ExitStack() as aside:
        for bars in _bars():
            aside.enter_context(bars.external_write_mode(file=out))
        print(text, file=out, flush=True)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def _folded(line: str, width: int) -> str:
    """A long line of words in several; what has colours or an indentation was laid out before."""
    if len(line) <= width or "\x1b" in line or line[:1].isspace():
        return line
    return "\n  ".join(wrapped(line, width - 2, first=width))


def _bars() -> list[Any]:
    """The classes of progress bars that are in use now."""
    std = sys.modules.get("tqdm.std")
    if std is None:
        return []
    classes, waiting = [], [std.tqdm]
    while waiting:
        bar = waiting.pop()
        waiting += bar.__subclasses__()
        if len(vars(bar).get("_instances", ())):
            classes.append(bar)
    return classes
