"""YAML with the place of every value. Tags are not followed: no object is ever made from a file."""

from __future__ import annotations

from typing import Any

import yaml

from nantrap.doctor.configuration.setting import UNKNOWN, Span
from nantrap.doctor.configuration.tree import MAX_LEAVES, Branch, Leaf, UnreadableError
from nantrap.doctor.configuration.values import scalar

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(text: str) -> Branch:
    """The first mapping of a YAML text; later documents of the same file are added to it."""
    try:
        documents = list(yaml.compose_all(text, Loader=_LOADER))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise UnreadableError(f"not YAML: {problem}", line=mark.line + 1 if mark is not None else None) from None
    except (RecursionError, ValueError) as error:
        raise UnreadableError(f"not YAML: {type(error).__name__}: {error}") from None
    whole = Branch({}, 1)
    for document in documents:
        if isinstance(document, yaml.MappingNode):
            whole.children.update(_Reader(text).branch(document, ()).children)
    return whole


class _Reader:
    """Turns composed nodes into a tree. Counts, because aliases let a short text describe millions of values."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.count = 0

    def branch(self, node: yaml.MappingNode, above: tuple[int, ...]) -> Branch:
        """A mapping, with `<<` merged into it."""
        if id(node) in above:
            raise UnreadableError("an anchor contains itself", line=node.start_mark.line + 1)
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
        return Leaf(_value(node), line, span, text if "${" in text else "")

    def sequence(self, node: yaml.SequenceNode, above: tuple[int, ...]) -> Branch | Leaf:
        """A list of plain values is one value; a list with mappings becomes a branch with numbers as names."""
        if id(node) in above:
            raise UnreadableError("an anchor contains itself", line=node.start_mark.line + 1)
        line = node.start_mark.line + 1
        inside = (*above, id(node))
        parts = [self.node(part, inside) for part in node.value]
        if any(isinstance(part, Branch) for part in parts):
            return Branch({str(index): part for index, part in enumerate(parts)}, line)
        span = Span(node.start_mark.index, node.end_mark.index)
        return Leaf([part.value for part in parts if isinstance(part, Leaf)], line, span)

    def _tick(self, node: yaml.Node) -> None:
        self.count += 1
        if self.count > MAX_LEAVES:
            raise UnreadableError(
                f"more than {MAX_LEAVES:,} values: this is data, or aliases of aliases", line=node.start_mark.line + 1
            )


def _value(node: yaml.Node) -> Any:
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
