"""YAML, JSON and TOML as trees, with the place of every value.

Tags of YAML are not followed: no object is ever made from a file. Comments and trailing commas in JSON, which people
write, are ignored. TOML is read line by line, because the standard library's reader gives no lines.
"""

from __future__ import annotations

import bisect
import json
import re
from typing import Any, Final

import yaml

from nantrap.doctor.configuration.setting import UNKNOWN, Span, quoted, scalar
from nantrap.doctor.configuration.tree import MAX_DEPTH, MAX_LEAVES, Branch, Leaf, UnreadableSettingsError

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SPACE: Final = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/|#[^\n]*)*", re.DOTALL)
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_WORD: Final = re.compile(r"[-+A-Za-z0-9_.]+")
_HEADER: Final = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_ENTRY: Final = re.compile(r"""\s*((?:[A-Za-z0-9_.\- ]|"[^"]*"|'[^']*')+?)\s*=\s*""")
_PART: Final = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_TRIPLE: Final = ('"""', "'''")


def read_tree(text: str, kind: str) -> Branch:
    """The tree of a text of one kind: `yaml`, `json` or `toml`.

    Raises:
        UnreadableSettingsError: The text is not of that kind, or too large to be written by hand.
    """
    return {"yaml": read_yaml, "json": read_json, "toml": read_toml}[kind](text)


def _list(parts: list[Branch | Leaf], line: int, span: Span) -> Branch | Leaf:
    """A list of plain values is one value; a list with mappings becomes a branch with numbers as names."""
    if any(isinstance(part, Branch) for part in parts):
        return Branch({str(index): part for index, part in enumerate(parts)}, line)
    return Leaf([part.value for part in parts if isinstance(part, Leaf)], line, span)


def read_yaml(text: str) -> Branch:
    """The first mapping of a YAML text; later documents of the same file are added to it."""
    try:
        documents = list(yaml.compose_all(text, Loader=_LOADER))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise UnreadableSettingsError(
            f"not YAML: {problem}", line=mark.line + 1 if mark is not None else None
        ) from None
    except (RecursionError, ValueError) as error:
        raise UnreadableSettingsError(f"not YAML: {type(error).__name__}: {error}") from None
    whole = Branch({}, 1)
    for document in documents:
        if isinstance(document, yaml.MappingNode):
            whole.children.update(_YamlReader(text).branch(document, ()).children)
    return whole


class _YamlReader:
    """Turns composed nodes into a tree. Counts, because aliases let a short text describe millions of values."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.count = 0

    def branch(self, node: yaml.MappingNode, above: tuple[int, ...]) -> Branch:
        """A mapping, with `<<` merged into it."""
        if id(node) in above:
            raise UnreadableSettingsError("an anchor contains itself", line=node.start_mark.line + 1)
        inside = (*above, id(node))
        children: dict[str, Branch | Leaf] = {}
        merged: dict[str, Branch | Leaf] = {}
        for key, value in node.value:
            self._tick(node)
            name = str(getattr(key, "value", "")) if isinstance(key, yaml.ScalarNode) else "?"
            if name == "<<":
                for part in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if isinstance(part, yaml.MappingNode):
                        merged.update(self.branch(part, inside).children)
                continue
            children[name] = self.node(value, inside)
        return Branch({**merged, **children}, node.start_mark.line + 1)

    def node(self, node: yaml.Node, above: tuple[int, ...]) -> Branch | Leaf:
        """Any node."""
        self._tick(node)
        line = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            return self.branch(node, above)
        if isinstance(node, yaml.SequenceNode):
            return self.sequence(node, above)
        span = Span(node.start_mark.index, node.end_mark.index)
        text = str(node.value)
        return Leaf(_yaml_value(node), line, span, text if "${" in text else "")

    def sequence(self, node: yaml.SequenceNode, above: tuple[int, ...]) -> Branch | Leaf:
        """A list, whose parts may be aliases."""
        if id(node) in above:
            raise UnreadableSettingsError("an anchor contains itself", line=node.start_mark.line + 1)
        line = node.start_mark.line + 1
        inside = (*above, id(node))
        parts = [self.node(part, inside) for part in node.value]
        return _list(parts, line, Span(node.start_mark.index, node.end_mark.index))

    def _tick(self, node: yaml.Node) -> None:
        self.count += 1
        if self.count > MAX_LEAVES:
            raise UnreadableSettingsError(
                f"more than {MAX_LEAVES:,} values: this is data, or aliases of aliases", line=node.start_mark.line + 1
            )


def _yaml_value(node: yaml.Node) -> Any:
    """The value of a scalar as PyYAML reads it, except that `1e-4` is a number; unknown for a tag."""
    text = str(node.value)
    quoted = getattr(node, "style", None) in ("'", '"', "|", ">")
    if node.tag == "tag:yaml.org,2002:bool" and not quoted:
        return text.lower() in ("true", "yes", "on", "y")
    if node.tag == "tag:yaml.org,2002:null" and not quoted:
        return None
    if node.tag.startswith("!"):
        return UNKNOWN
    if quoted and text.lower() in ("true", "false", "null", "none", ""):
        return text
    return scalar(text)


def read_json(text: str) -> Branch:
    """The mapping at the top of a JSON text; an empty tree if the top is something else, or a report of nantrap."""
    reader = _JsonReader(text)
    node = reader.node(0)
    reader.skip()
    if reader.position < len(text):
        raise reader.error("something follows the end of the document")
    if not isinstance(node, Branch):
        return Branch({}, 1)
    schema = node.children.get("schema")
    is_report = isinstance(schema, Leaf) and isinstance(schema.value, str) and schema.value.startswith("nantrap.")
    return Branch({}, 1) if is_report else node


class _JsonReader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 1 if text.startswith("\ufeff") else 0
        self.count = 0
        self.starts = [match.end() for match in re.finditer("\n", text)]

    def line(self, offset: int) -> int:
        """The line of an offset, from 1."""
        return bisect.bisect_right(self.starts, offset) + 1

    def error(self, message: str) -> UnreadableSettingsError:
        """An error at the present place."""
        return UnreadableSettingsError(f"not JSON: {message}", line=self.line(self.position))

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
            raise UnreadableSettingsError(
                f"more than {MAX_LEAVES:,} values: this is data", line=self.line(self.position)
            )
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
            return Leaf(quoted(value), self.line(start), Span(start, self.position))
        word = _WORD.match(self.text, self.position)
        if word is None:
            raise self.error("a value is missing" if head else "the file ends in the middle")
        self.position = word.end()
        value = scalar(word.group())
        if isinstance(value, str):
            raise UnreadableSettingsError(f"not JSON: {word.group()[:40]} is not a value", line=self.line(start))
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
        return _list(parts, self.line(start), Span(start, self.position))

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
            section = _enter(whole, _toml_names(header.group(1)), number + 1, repeated=stripped.startswith("[["))
        elif entry is not None:
            start = position + entry.end()
            end = _end_of_value(text, start)
            if end is None:
                raise UnreadableSettingsError("not TOML: a value does not end", line=number + 1)
            names = _toml_names(entry.group(1))
            target = _enter(section, names[:-1], number + 1)
            target.children[names[-1]] = _node(text, start, end, number + 1)
            consumed += text.count("\n", start, end)
        else:
            raise UnreadableSettingsError(
                f"not TOML: expected NAME = value or [section], found {stripped[:40]!r}", line=number + 1
            )
        for _ in range(consumed):
            if number < len(lines):
                position += len(lines[number])
                number += 1
    return whole


def _toml_names(text: str) -> list[str]:
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
        for part in _between_commas(raw[1:-1]):
            name, equals, value = part.partition("=")
            if equals:
                offset = start + raw.index(part) + len(name) + 1
                lead = len(value) - len(value.lstrip())
                target = _enter(branch, _toml_names(name)[:-1], line)
                target.children[_toml_names(name)[-1]] = _node(text, offset + lead, offset + len(value.rstrip()), line)
        return branch
    return Leaf(_toml_value(raw), line, Span(start, end))


def _toml_value(raw: str) -> Any:
    if raw[:1] in "\"'" and raw:
        return quoted(raw.strip("\"'"))
    if raw.startswith("["):
        return [_toml_value(part.strip()) for part in _between_commas(raw[1:-1]) if part.strip()]
    return scalar(raw)


def _between_commas(inner: str) -> list[str]:
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
