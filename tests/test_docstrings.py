"""Every function of more than a few lines says what it is for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import nantrap
import nantrap_systems

PACKAGES = [Path(package.__file__).parent for package in (nantrap, nantrap_systems)]
MOST_LINES = 8

PROGRAM = '''
class Guard:
    def documented(self):
        """It has one."""
{body}
    def short(self):
        return 1

    def long(self):
{body}
    def __exit__(self, *exception):
{body}
'''.format(body="        pass\n" * MOST_LINES)


def without_docstring(text: str) -> Iterator[str]:
    """The longer functions of a file that have no docstring; methods that Python names explain themselves."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            named_by_python = node.name.startswith("__") and node.name.endswith("__")
            if lines > MOST_LINES and not named_by_python and ast.get_docstring(node) is None:
                yield node.name


def test_longer_functions_have_docstrings() -> None:
    missing: list[str] = []
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            inside = path.relative_to(package.parent)
            missing += [f"{inside}: {name}" for name in without_docstring(path.read_text(encoding="utf-8"))]
    assert missing == []


def test_a_function_without_a_docstring_is_found() -> None:
    assert list(without_docstring(PROGRAM)) == ["long"]


LEANS = re.compile(
    r"(The same (with|for|where|on|as|without|call|norm)\b|The same, |Those (of|that|in)\b|As in\b|As `|That of\b)"
)
"""Beginnings of a docstring that is understood only after the one above it."""


def leaning(text: str) -> Iterator[str]:
    """The functions and classes of a file whose docstring begins so."""
    for node in ast.walk(ast.parse(text)):
        named = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        if named and LEANS.match(ast.get_docstring(node) or ""):
            yield node.name


def test_docstrings_stand_without_their_neighbours() -> None:
    found = [f"{path.name}: {name}" for path in PACKAGES[0].rglob("*.py") for name in leaning(path.read_text())]
    assert found == []


def test_a_docstring_that_leans_on_its_neighbour_is_found() -> None:
    assert list(leaning('def clip(norm):\n    """The same on the device."""')) == ["clip"]
    assert list(leaning('def clip(norm):\n    """Clip to a norm, the same on every device."""')) == []
