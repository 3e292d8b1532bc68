"""The tree of a configuration file with the line of every value: what every reader produces.

Hydra and OmegaConf: interpolations are resolved, and a `defaults` list puts the files of a folder together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nantrap.doctor.configuration.names import named_setting
from nantrap.doctor.configuration.setting import UNKNOWN, Setting, Span

MAX_LEAVES: Final = 20_000
"""More than any person writes; beyond it the file is data, or aliases of aliases."""
MAX_DEPTH: Final = 40
_REFERENCE: Final = re.compile(r"\$\{(\.*)([A-Za-z_][\w.\[\]-]*)\}$")
_PACKAGE: Final = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
_DEEPEST: Final = 10


class UnreadableSettingsError(Exception):
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
                raise UnreadableSettingsError(f"more than {MAX_LEAVES:,} values: this is data, or aliases of aliases")
            yield path, node
        elif len(path) < MAX_DEPTH:
            stack.extend(((*path, name), child) for name, child in reversed(node.children.items()))


def settings_of(branch: Branch, *, file: str, extra: Mapping[str, str] | None = None) -> tuple[Setting, ...]:
    """The tree as a list of settings with their meaning."""
    return tuple(
        named_setting(path, leaf.value, file=leaf.file or file, line=leaf.line, span=leaf.span, extra=extra)
        for path, leaf in leaves(branch)
    )


def at(branch: Branch, path: tuple[str, ...]) -> Branch | Leaf | None:
    """The node at a path, or None."""
    node: Branch | Leaf | None = branch
    for name in path:
        if not isinstance(node, Branch):
            return None
        node = node.children.get(name)
    return node


def resolved(branch: Branch) -> Branch:
    """The tree with every `${a.b}` replaced by the value it refers to; what is not known stays unknown."""
    return _resolve(branch, branch, ())


def _resolve(node: Branch, top: Branch, path: tuple[str, ...]) -> Branch:
    """The tree with every reference (`${optimizer.lr}`) replaced by its value."""
    children: dict[str, Branch | Leaf] = {}
    for name, child in node.children.items():
        if isinstance(child, Branch):
            children[name] = _resolve(child, top, (*path, name)) if len(path) < MAX_DEPTH else child
        elif child.text:
            value = _follow(child.text, top, path, 0)
            children[name] = Leaf(value, child.line, None, child.text, child.file)
        else:
            children[name] = child
    return Branch(children, node.line, node.file)


def _follow(text: str, top: Branch, path: tuple[str, ...], depth: int) -> Any:
    """The value that a reference leads to; unknown if it is none, or leads in a circle."""
    found = _REFERENCE.match(text.strip())
    if found is None or depth > _DEEPEST:
        return UNKNOWN
    dots, names = found.groups()
    start = path[: len(path) - (len(dots) - 1)] if dots else ()
    target = (*start, *names.split("."))
    node = at(top, target)
    if not isinstance(node, Leaf):
        return UNKNOWN
    return _follow(node.text, top, target[:-1], depth + 1) if node.text else node.value


def composed(file: str, trees: Mapping[str, Branch], texts: Mapping[str, str]) -> Branch | None:
    """The tree that Hydra would make of a file with a `defaults` list; None if it has none.

    Args:
        file: the primary configuration.
        trees: every YAML file that was read, by path.
        texts: their texts, for `# @package` lines.
    """
    tree = trees[file]
    if not _defaults(tree):
        return None
    whole = _compose(file, os.path.dirname(file), trees, texts, 0)
    return resolved(whole)


def _compose(file: str, root: str, trees: Mapping[str, Branch], texts: Mapping[str, str], depth: int) -> Branch:
    """The configuration of a file with its defaults merged in, as Hydra does."""
    tree = trees[file]
    own = _of_file(Branch({k: v for k, v in tree.children.items() if k != "defaults"}, tree.line), file)
    whole = Branch({}, 1, file)
    placed = False
    for entry, choice in _defaults(tree):
        if entry == "_self_":
            whole, placed = _merge(whole, own), True
            continue
        group = re.sub(r"^(override|optional)\s+", "", entry)
        group, _, package = group.partition("@")
        base = root if group.startswith("/") else os.path.dirname(file)
        path = f"{group.strip('/')}/{choice}" if choice else group.strip("/")
        chosen = next(
            (
                name
                for name in (os.path.normpath(os.path.join(base, path + end)) for end in (".yaml", ".yml", ""))
                if name in trees
            ),
            None,
        )
        if chosen is None or depth >= _DEEPEST or chosen == file:
            continue
        part = _compose(chosen, root, trees, texts, depth + 1)
        header = _PACKAGE.search(texts.get(chosen, "")[:500])
        where = package or (header.group(1) if header is not None else group if choice else os.path.dirname(path))
        whole = _merge(whole, _under(part, where))
    return whole if placed else _merge(whole, own)


def _defaults(tree: Branch) -> list[tuple[str, str]]:
    """The entries of a `defaults` list: (group, choice), or (file, nothing)."""
    node = tree.children.get("defaults")
    found: list[tuple[str, str]] = []
    if isinstance(node, Leaf):
        if isinstance(node.value, list):
            found = [(str(item), "") for item in node.value if isinstance(item, str)]
    elif node is not None:
        for part in node.children.values():
            if isinstance(part, Leaf):
                found.append((str(part.value), ""))
            else:
                for name, choice in part.children.items():
                    if isinstance(choice, Leaf) and isinstance(choice.value, str):
                        found.append((name, choice.value))
    return found


def _under(branch: Branch, package: str) -> Branch:
    if package in ("", "_global_"):
        return branch
    for name in reversed(re.split(r"[./]", package.strip("/").removeprefix("_global_."))):
        if name and name != "_group_":
            branch = Branch({name: branch}, branch.line, branch.file)
    return branch


def _merge(under: Branch, over: Branch) -> Branch:
    children = dict(under.children)
    for name, child in over.children.items():
        below = children.get(name)
        children[name] = _merge(below, child) if isinstance(below, Branch) and isinstance(child, Branch) else child
    return Branch(children, over.line, over.file)


def _of_file(branch: Branch, file: str) -> Branch:
    """The tree with each of its values marked as written in this file."""
    children: dict[str, Branch | Leaf] = {}
    for name, child in branch.children.items():
        children[name] = (
            _of_file(child, file)
            if isinstance(child, Branch)
            else Leaf(child.value, child.line, child.span, child.text, file)
        )
    return Branch(children, branch.line, file)
