"""The fast way through a journal: lines of one shape are read by one pattern, without a dictionary for each.

Nearly all lines of a log differ in their numbers alone. The pattern of the first line (its text with a group in place
of each number) matches the lines after it; what it captured becomes one array. A stretch that has another line in it
is halved until the odd lines are alone, and those are read by the JSON decoder.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nantrap.record.columns import Block

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|-?\b(?:NaN|Infinity)\b')
_NUMBER = r"([^,\]}]+)"  # what is not a number after all is refused when the numbers are read
_NONFINITE = ('"nan"', '"inf"', '"-inf"')
_MOST_GROUPS = 64


@dataclass(frozen=True, slots=True)
class Template:
    """The shape of a line: a pattern with a group for each number, the numbers' names, and the texts that stay."""

    pattern: re.Pattern[bytes]
    names: tuple[str, ...]
    texts: dict[str, str]

    def read(self, text: bytes, lines: int) -> Block | None:
        """All lines as one block; `None` if one of them has another shape."""
        found = self.pattern.findall(text)
        if len(found) != lines:
            return None
        joined = b",".join(map(b",".join, found) if len(self.names) > 1 else found)
        if b'"' in joined:
            for word in _NONFINITE:
                joined = joined.replace(word.encode(), word.strip('"').encode())
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # numpy's error for "1.2.3 is not a number"
            try:
                values = np.fromstring(joined, sep=",")
            except (DeprecationWarning, ValueError):
                return None
        if len(values) != lines * len(self.names):
            return None
        return Block(self.names, values.reshape(lines, len(self.names)), self.texts)


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
    pattern = "".join(_pieces(line))
    if pattern.count(_NUMBER) != len(names):
        return None
    kept = [wanted is None or wanted(name) for name in names]
    if not any(kept):
        return None
    if not all(kept):  # what is not wanted is matched, and not captured
        pieces = pattern.split(_NUMBER)
        groups = [_NUMBER if keep else _NUMBER.replace("(", "(?:", 1) for keep in kept]
        pattern = "".join(piece for pair in zip(pieces, groups + [""], strict=True) for piece in pair)
    compiled = re.compile(f"^{pattern}$".encode(), re.M)
    return Template(compiled, tuple(name for name, keep in zip(names, kept, strict=True) if keep), texts)


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


def _pieces(line: str) -> Iterator[str]:
    position = 0
    for match in _TOKEN.finditer(line):
        token = match[0]
        yield re.escape(line[position : match.start()])
        is_key = token[0] == '"' and line[match.end() :].lstrip()[:1] == ":"
        yield _NUMBER if (token[0] != '"' or token in _NONFINITE) and not is_key else re.escape(token)
        position = match.end()
    yield re.escape(line[position:])
