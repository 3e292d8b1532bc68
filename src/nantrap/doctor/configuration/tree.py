"""The tree of a configuration file with the line of every value: what every reader produces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nantrap.doctor.configuration.names import meaning, plain
from nantrap.doctor.configuration.setting import Setting, Span

MAX_LEAVES: Final = 20_000
"""More than any person writes; beyond it the file is data, or aliases of aliases."""
MAX_DEPTH: Final = 40


class UnreadableError(Exception):
    """A file is not what its name says. `line` where it is known."""

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


@dataclass(slots=True)
class Leaf:
    """A value without parts. `value` is what the reader made of it, lists included."""

    value: Any
    line: int
    span: Span | None = None
    text: str = ""
    """The text of a value that refers to another one: `${trainer.lr}`."""
    file: str | None = None
    """Set where trees of several files were put together."""


@dataclass(slots=True)
class Branch:
    """A mapping. `children` are branches and leaves by name, in order."""

    children: dict[str, Branch | Leaf]
    line: int
    file: str | None = None


def leaves(branch: Branch) -> Iterator[tuple[tuple[str, ...], Leaf]]:
    """Every value with its names from the top. Stops with an error at a tree that is too large to be written by
    hand."""
    count = 0
    stack: list[tuple[tuple[str, ...], Branch | Leaf]] = [((), branch)]
    while stack:
        path, node = stack.pop()
        if isinstance(node, Leaf):
            count += 1
            if count > MAX_LEAVES:
                raise UnreadableError(f"more than {MAX_LEAVES:,} values: this is data, or aliases of aliases")
            yield path, node
        elif len(path) < MAX_DEPTH:
            stack.extend(((*path, name), child) for name, child in reversed(node.children.items()))


def settings_of(
    branch: Branch, *, file: str, extra: Mapping[str, str] | None = None, under: tuple[str, ...] = ()
) -> tuple[Setting, ...]:
    """The tree as a list of settings with their meaning."""
    found = []
    for path, leaf in leaves(branch):
        whole = (*under, *path)
        if not whole:
            continue
        names = tuple(plain(name) for name in whole)
        found.append(Setting(whole, names, meaning(names, extra), leaf.value, leaf.file or file, leaf.line, leaf.span))
    return tuple(found)


def at(branch: Branch, path: tuple[str, ...]) -> Branch | Leaf | None:
    """The node at a path, or None."""
    node: Branch | Leaf | None = branch
    for name in path:
        if not isinstance(node, Branch):
            return None
        node = node.children.get(name)
    return node
