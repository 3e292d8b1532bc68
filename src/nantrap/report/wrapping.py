"""Line wrapping: at spaces only, never inside code, and no single word on the last line."""

from __future__ import annotations

import re

_ATOM = re.compile(
    r"`[^`]*`\S*"  # quoted code
    r"|[\w.\[\]]+\([^()\n]{0,60}\)[^\s]*"  # a call with its arguments
    r"|\d[\d,.]* of \d[\d,.]*"  # a count keeps its total
    r"|\S+"
)
_SHORTEST = 20


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
