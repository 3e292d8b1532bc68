"""TOML with the place of every value, line by line: the standard library's reader gives no lines."""

from __future__ import annotations

import re
from typing import Any, Final

from nantrap.doctor.configuration.setting import UNKNOWN, Span
from nantrap.doctor.configuration.tree import Branch, Leaf, UnreadableError
from nantrap.doctor.configuration.values import scalar

_HEADER: Final = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_ENTRY: Final = re.compile(r"""\s*((?:[A-Za-z0-9_.\- ]|"[^"]*"|'[^']*')+?)\s*=\s*""")
_PART: Final = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_TRIPLE: Final = ('"""', "'''")


def read_toml(text: str) -> Branch:
    """The tree of a TOML text."""
    whole = Branch({}, 1)
    section = whole
    position = number = 0
    lines = text.splitlines(keepends=True)
    while number < len(lines):
        line = lines[number]
        stripped = line.strip()
        header = _HEADER.match(line)
        entry = _ENTRY.match(line)
        consumed = 1
        if not stripped or stripped.startswith("#"):
            pass
        elif header is not None and entry is None:
            section = _enter(whole, _names(header.group(1)), number + 1, repeated=stripped.startswith("[["))
        elif entry is not None:
            start = position + entry.end()
            end = _end_of_value(text, start)
            if end is None:
                raise UnreadableError("not TOML: a value does not end", line=number + 1)
            names = _names(entry.group(1))
            target = _enter(section, names[:-1], number + 1)
            target.children[names[-1]] = _node(text, start, end, number + 1)
            consumed += text.count("\n", start, end)
        else:
            raise UnreadableError(
                f"not TOML: expected NAME = value or [section], found {stripped[:40]!r}", line=number + 1
            )
        for _ in range(consumed):
            if number < len(lines):
                position += len(lines[number])
                number += 1
    return whole


def _names(text: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(text)] or ["?"]


def _enter(branch: Branch, names: list[str], line: int, *, repeated: bool = False) -> Branch:
    """The table at these names, made where it is missing; a repeated table gets a name of its own."""
    for position, name in enumerate(names):
        child = branch.children.get(name)
        if repeated and position == len(names) - 1:
            while name in branch.children:
                name += "+"
            child = None
        if not isinstance(child, Branch):
            child = Branch({}, line)
            branch.children[name] = child
        branch = child
    return branch


def _end_of_value(text: str, start: int) -> int | None:
    """The offset after a value, which may continue over several lines inside brackets or triple quotes."""
    for quote in _TRIPLE:
        if text.startswith(quote, start):
            end = text.find(quote, start + 3)
            return None if end < 0 else end + 3
    depth, offset = 0, start
    while offset < len(text):
        char = text[offset]
        if char in "\"'":
            end = offset + 1
            while end < len(text) and text[end] != char:
                end += 2 if text[end] == "\\" and char == '"' else 1
            if end >= len(text) or "\n" in text[offset:end]:
                return None
            offset = end
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif char == "#":
            if depth == 0:
                break
            offset = text.find("\n", offset)
            if offset < 0:
                return None
        elif char == "\n" and depth == 0:
            break
        offset += 1
    return start + len(text[start:offset].rstrip()) if depth == 0 else None


def _node(text: str, start: int, end: int, line: int) -> Branch | Leaf:
    """The value between two positions: an inline table as a tree, anything else as a leaf."""
    raw = text[start:end]
    if raw.startswith("{") and raw.endswith("}"):
        branch = Branch({}, line)
        for part in _split(raw[1:-1]):
            name, equals, value = part.partition("=")
            if equals:
                offset = start + raw.index(part) + len(name) + 1
                lead = len(value) - len(value.lstrip())
                target = _enter(branch, _names(name)[:-1], line)
                target.children[_names(name)[-1]] = _node(text, offset + lead, offset + len(value.rstrip()), line)
        return branch
    return Leaf(_value(raw), line, Span(start, end))


def _value(raw: str) -> Any:
    if raw[:1] in "\"'" and raw:
        inner = raw.strip("\"'")
        found = scalar(inner) if inner else ""
        return found if found is UNKNOWN or (isinstance(found, (int, float)) and not isinstance(found, bool)) else inner
    if raw.startswith("["):
        return [_value(part.strip()) for part in _split(raw[1:-1]) if part.strip()]
    return scalar(raw)


def _split(inner: str) -> list[str]:
    """The parts between commas that are in no bracket and no quotes."""
    parts, depth, quote, current = [], 0, "", ""
    for char in re.sub(r"#[^\n]*", "", inner) if "\n" in inner else inner:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        if char == "," and depth == 0 and not quote:
            parts.append(current)
            current = ""
        else:
            current += char
    return [*parts, current] if current.strip() else parts
