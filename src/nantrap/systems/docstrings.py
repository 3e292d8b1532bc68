"""Text that is on every machine: the docstrings of the standard library."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from nantrap.errors import UsageError

_MODULES = (
    "argparse", "ast", "collections", "contextlib", "csv", "datetime", "difflib", "enum", "fractions", "functools",
    "glob", "heapq", "inspect", "json", "logging", "pathlib", "random", "shutil", "statistics", "string", "tarfile",
    "tempfile", "textwrap", "threading", "unittest", "urllib.parse", "uuid", "zipfile",
)  # fmt: skip


@functools.cache
def docstrings() -> Mapping[str, str]:
    """The docstring of every public class, function and method of some modules, by dotted name."""
    found = dict(_docstrings(_MODULES))
    if not found:
        raise UsageError("the standard library has no docstrings here: run Python without -OO")
    return MappingProxyType(found)


def _docstrings(modules: Sequence[str]) -> Iterator[tuple[str, str]]:
    for module_name in modules:
        module = importlib.import_module(module_name)
        for name, thing in _public(module):
            if getattr(thing, "__module__", None) != module_name or not callable(thing):
                continue
            members = [(f"{name}.{n}", member) for n, member in _public(thing)] if inspect.isclass(thing) else []
            for path, owner in [(name, thing), *members]:
                text = getattr(owner, "__doc__", None)
                if isinstance(text, str) and text.strip():
                    yield f"{module_name}.{path}", inspect.cleandoc(text)


def _public(owner: Any) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in sorted(vars(owner).items()) if not name.startswith("_")]
