"""The fast way through a journal: lines of one shape are read together, without a dictionary for each.

Nearly all lines of a log differ in their numbers alone. What is between the numbers of one line must be the same in the
others. Then every line has the same number of commas and brackets, and those behind the numbers are at the same place
among them: one search for these signs finds all numbers of all lines. Lines of another shape are left to the JSON
decoder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nantrap.record.columns import Block
from nantrap.record.decimals import MARGIN, Bools, Bytes, Places, read_decimals

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|-?\b(?:NaN|Infinity)\b')
_NEWLINE = ord("\n")
_ENDS = b",]}"
_AFTER = (b",", b"]", b"}")
"""What follows a number; a space does not, so that the end of a number is where one of these is."""
_NONFINITE = ('"nan"', '"inf"', '"-inf"')
_MOST_GROUPS = 64


@dataclass(frozen=True, slots=True)
class Template:
    """The shape of a line.

    Attributes:
        between: what is before, between and behind the numbers: one more than there are numbers.
        names: the name of each number; `None` for one that is not wanted.
        texts: the texts of the line, by name.
    """

    between: tuple[bytes, ...]
    names: tuple[str | None, ...]
    texts: dict[str, str]

    def read(self, text: bytes, lines: int) -> tuple[Block, Bools, list[bytes]]:
        """The lines of this shape as one block, which of the lines these are, and the other lines."""
        data = np.frombuffer(b"".join((b"\n" * MARGIN, text, b"\n" * MARGIN)), dtype=np.uint8)
        line_end = np.flatnonzero(data == _NEWLINE)[MARGIN : MARGIN + lines]
        line = np.append(MARGIN, line_end[:-1] + 1)
        ends = np.flatnonzero((data == _ENDS[0]) | (data == _ENDS[1]) | (data == _ENDS[2]))
        in_piece = [sum(piece.count(bytes([sign])) for sign in _ENDS) for piece in self.between]
        fits = np.ones(lines, dtype=bool)
        if len(ends) != lines * sum(in_piece):
            before = np.searchsorted(ends, line_end)
            number = np.diff(before, prepend=0)
            fits = number == sum(in_piece)
            ends = ends[np.repeat(fits, number)]
        which = np.flatnonzero(fits)
        found, good = self._located(data, line[which], line_end[which], ends.reshape(-1, sum(in_piece)), in_piece)
        which, found = which[good], [(start[good], end[good]) for start, end in found]
        names: list[str] = []
        values = np.empty((len(self.names), len(which)))
        readable = np.ones(len(which), dtype=bool)
        for name, (start, end) in zip(self.names, found, strict=True):
            if name is not None:
                values[len(names)], fine = read_decimals(data, start, end)
                readable &= fine
                names.append(name)
        fits[:] = False
        fits[which[readable]] = True
        others = [data[line[i] : line_end[i]].tobytes() for i in np.flatnonzero(~fits).tolist()]
        return Block(tuple(names), values[: len(names), readable].T, self.texts), fits, others

    def _located(
        self, data: Bytes, line: Places, line_end: Places, ends: Places, in_piece: Sequence[int]
    ) -> tuple[list[tuple[Places, Places]], Bools]:
        """Where each number begins and ends, an array over the lines for each, and which lines have this shape.

        A line of another shape may have as many ends as this one. It fails here, because what is between its numbers
        differs, or when its numbers are read, because a number has no comma and no bracket in it.
        """
        found, position, good = [], line, np.ones(len(line), dtype=bool)
        for piece, at in zip(self.between, np.cumsum(in_piece[:-1]).tolist(), strict=False):
            start, end = position + len(piece), ends[:, at]
            good &= _is_at(data, position, piece) & (start < end)
            found.append((start, end))
            position = end
        good &= _is_at(data, position, self.between[-1]) & (position + len(self.between[-1]) == line_end)
        return found, good


def template_of(line: str, wanted: Callable[[str], bool] | None = None) -> Template | None:
    """The template of a line, or `None` if the line is not of the simple kind: numbers, texts, objects and lists."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or "kind" in record or "event" in record:
        return None
    names: list[str] = []
    texts: dict[str, str] = {}
    if not all(_leaves(key, value, names, texts) for key, value in record.items()):
        return None
    if not names or len(names) > _MOST_GROUPS or len(set(names)) != len(names):
        return None
    between = tuple(_between(line))
    if len(between) != len(names) + 1 or any(piece[:1] not in _AFTER for piece in between[1:]):
        return None
    kept = tuple(name if wanted is None or wanted(name) else None for name in names)
    return Template(between, kept, texts) if any(name is not None for name in kept) else None


def _is_at(data: Bytes, places: Places, piece: bytes) -> Bools:
    """At which of the places these bytes are. Eight are compared at a time; the last eight may overlap the others."""
    found = np.ones(len(places), dtype=bool)
    width = min(8, len(piece))
    if not width:
        return found
    view = np.ndarray((len(data) - width + 1,), dtype=f"V{width}", buffer=data, strides=(1,))
    kind = f"<u{width}" if width in (1, 2, 4, 8) else f"S{width}"
    for at in (*range(0, len(piece) - width, width), len(piece) - width):
        there = view[np.minimum(places + at, len(view) - 1)].view(kind)
        found &= there == np.frombuffer(piece[at : at + width], dtype=kind)
    return found


def _leaves(name: str, value: Any, names: list[str], texts: dict[str, str]) -> bool:
    """Collect the names of the numbers in the order of the text; False for what has no template."""
    if type(value) in (int, float) or value in ("nan", "inf", "-inf"):
        names.append(name)
        return True
    if isinstance(value, str):
        texts[name] = value
        return True
    if isinstance(value, dict):
        return all(_leaves(f"{name}.{key}", item, names, texts) for key, item in value.items())
    if isinstance(value, list) and len(value) <= 16:
        return all(_leaves(f"{name}.{i}" if i else name, item, names, texts) for i, item in enumerate(value))
    return False


def _between(line: str) -> Iterator[bytes]:
    """What is before, between and behind the numbers of a line."""
    position = 0
    for match in _TOKEN.finditer(line):
        token = match[0]
        is_key = token[0] == '"' and line[match.end() :].lstrip()[:1] == ":"
        if (token[0] != '"' or token in _NONFINITE) and not is_key:
            yield line[position : match.start()].encode()
            position = match.end()
    yield line[position:].encode()
