"""JSON with the place of every value. Comments and trailing commas, which people write, are ignored."""

from __future__ import annotations

import bisect
import json
import re
from typing import Any, Final

from nantrap.doctor.configuration.setting import UNKNOWN, Span
from nantrap.doctor.configuration.tree import MAX_DEPTH, MAX_LEAVES, Branch, Leaf, UnreadableError
from nantrap.doctor.configuration.values import scalar

_SPACE: Final = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/|#[^\n]*)*", re.DOTALL)
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_WORD: Final = re.compile(r"[-+A-Za-z0-9_.]+")


def read_json(text: str) -> Branch:
    """The mapping at the top of a JSON text; an empty tree if the top is something else, or a report of nantrap."""
    reader = _Reader(text)
    node = reader.node(0)
    reader.skip()
    if reader.position < len(text):
        raise reader.error("something follows the end of the document")
    if not isinstance(node, Branch):
        return Branch({}, 1)
    schema = node.children.get("schema")
    is_report = isinstance(schema, Leaf) and isinstance(schema.value, str) and schema.value.startswith("nantrap.")
    return Branch({}, 1) if is_report else node


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 1 if text.startswith("\ufeff") else 0
        self.count = 0
        self.starts = [match.end() for match in re.finditer("\n", text)]

    def line(self, offset: int) -> int:
        """The line of an offset, from 1."""
        return bisect.bisect_right(self.starts, offset) + 1

    def error(self, message: str) -> UnreadableError:
        """An error at the present place."""
        return UnreadableError(f"not JSON: {message}", line=self.line(self.position))

    def skip(self) -> None:
        """Skip spaces and comments."""
        found = _SPACE.match(self.text, self.position)
        assert found is not None
        self.position = found.end()

    def peek(self) -> str:
        """The next character, or nothing at the end."""
        self.skip()
        return self.text[self.position : self.position + 1]

    def node(self, depth: int) -> Branch | Leaf:
        """Any value."""
        self.count += 1
        if self.count > MAX_LEAVES:
            raise UnreadableError(f"more than {MAX_LEAVES:,} values: this is data", line=self.line(self.position))
        if depth > MAX_DEPTH:
            raise self.error("nested too deeply")
        head = self.peek()
        start = self.position
        if head == "{":
            return self._object(depth)
        if head == "[":
            return self._array(depth)
        if head == '"':
            value = self._text()
            return Leaf(_meant(value), self.line(start), Span(start, self.position))
        word = _WORD.match(self.text, self.position)
        if word is None:
            raise self.error("a value is missing" if head else "the file ends in the middle")
        self.position = word.end()
        value = scalar(word.group())
        if isinstance(value, str):
            raise UnreadableError(f"not JSON: {word.group()[:40]} is not a value", line=self.line(start))
        return Leaf(value, self.line(start), Span(start, self.position))

    def _object(self, depth: int) -> Branch:
        """The object that begins here; the position is left after it."""
        branch = Branch({}, self.line(self.position))
        self.position += 1
        while self.peek() != "}":
            if self.peek() != '"':
                raise self.error("a name in quotes is missing" if self.peek() else "the file ends in the middle")
            name = self._text()
            if self.peek() != ":":
                raise self.error("a colon is missing")
            self.position += 1
            branch.children[name] = self.node(depth + 1)
            self._comma("}")
        self.position += 1
        return branch

    def _array(self, depth: int) -> Branch | Leaf:
        """The array that begins here, as a tree if it holds objects, else as a list of values."""
        start = self.position
        self.position += 1
        parts: list[Branch | Leaf] = []
        while self.peek() != "]":
            parts.append(self.node(depth + 1))
            self._comma("]")
        self.position += 1
        if any(isinstance(part, Branch) for part in parts):
            return Branch({str(index): part for index, part in enumerate(parts)}, self.line(start))
        values = [part.value for part in parts if isinstance(part, Leaf)]
        return Leaf(values, self.line(start), Span(start, self.position))

    def _comma(self, end: str) -> None:
        head = self.peek()
        if head == ",":
            self.position += 1
        elif head != end:
            raise self.error("a comma is missing" if head else "the file ends in the middle")

    def _text(self) -> str:
        """The text in quotes that begins here; the position is left after it."""
        found = _STRING.match(self.text, self.position)
        if found is None:
            raise self.error("a text in quotes does not end")
        self.position = found.end()
        try:
            return str(json.loads(found.group(), strict=False))
        except ValueError:
            return found.group()[1:-1]


def _meant(text: str) -> Any:
    """Text in quotes; a number in quotes is a number, `auto` is unknown."""
    if text.lower() in ("true", "false", "null", "none", ""):
        return text
    found = scalar(text)
    return found if isinstance(found, (int, float)) or found is UNKNOWN else text
