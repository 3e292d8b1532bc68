"""From a Python frame to the user's own line: file, line, function, text, and the columns of the guilty expression."""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import linecache
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any, TypeVar

import torch

import nantrap
from nantrap.incident import Source

_TORCH = os.path.dirname(torch.__file__) + os.sep
_NANTRAP = os.path.dirname(nantrap.__file__) + os.sep
Function = TypeVar("Function", bound=Callable[..., Any])
_INTERNAL = ("<frozen", "<__array_function__")


@dataclass(frozen=True, slots=True)
class Place:
    """A point in a code object: cheap to take for each operation, turned into a `Source` only when it is shown."""

    code: CodeType
    instruction: int
    line: int

    def source(self) -> Source:
        """The line with its text and columns."""
        column, end_column = self._columns()
        return Source(
            file=self.code.co_filename,
            line=self.line,
            function=qualified_name(self.code),
            text=linecache.getline(self.code.co_filename, self.line).rstrip("\n"),
            column=column,
            end_column=end_column,
        )

    def _columns(self) -> tuple[int | None, int | None]:
        if sys.version_info < (3, 11):
            return None, None
        positions = next(itertools.islice(self.code.co_positions(), self.instruction // 2, None), None)
        if positions is None or positions[0] != positions[1]:
            return None, None  # the expression spans several lines
        return positions[2], positions[3]


def place_of(code: CodeType, instruction: int) -> Place | None:
    """The place of an instruction, as an offset in bytes; `None` if it belongs to no line."""
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return Place(code, instruction, line)
    return None


def with_cell_name(source: Source | None) -> Source | None:
    """A line of a notebook named as the notebook names it, `Cell In[3]`, and not by a temporary file of the kernel.

    For incidents that are finished: while one is being made, lines are compared by the names that Python knows.
    """
    named = None if source is None else cell_name(source.file)
    return source if named is None or source is None else replace(source, file=named)


def cell_name(file: str) -> str | None:
    """`Cell In[3]` for the temporary file of a notebook's kernel; `None` for a real file."""
    shell: Any = None
    if (ipython := sys.modules.get("IPython")) is not None:
        shell = getattr(ipython, "get_ipython", lambda: None)()
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)
    named = None if name_of is None else name_of(file)
    return None if named is None else " ".join(named)


def qualified_name(code: CodeType) -> str:
    """`Attention.forward`: the name of a function with its classes. Python 3.10 has to look it up in the source."""
    if sys.version_info >= (3, 11):
        return code.co_qualname
    else:  # noqa: RET505 - mypy takes the version's branch only in this form
        return _names_in_file(code.co_filename).get(code.co_firstlineno, code.co_name)


@functools.lru_cache(maxsize=256)
def _names_in_file(file: str) -> dict[int, str]:
    """The qualified name of each function of a file, by the line on which its code begins (decorators included)."""
    found: dict[int, str] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        """Note the first line and the qualified name of each function below a node."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                found[first] = f"{prefix}{child.name}"
                visit(child, f"{prefix}{child.name}.<locals>.")
            else:
                visit(child, prefix)

    with contextlib.suppress(SyntaxError, ValueError):
        visit(ast.parse("".join(linecache.getlines(file))), "")
    return found


def user_place(frame: FrameType | None, *, inside: str | None = None) -> Place | None:
    """The innermost frame that belongs to the user: not torch, not nantrap.

    Args:
        frame: where the search begins, outwards.
        inside: the name of a function beyond which it does not go.
    """
    while frame is not None and frame.f_code not in _boundaries and frame.f_code.co_name != inside:
        if is_user_code(frame.f_code):
            return Place(frame.f_code, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return None


_boundaries: set[CodeType] = set()


def is_boundary(function: Function) -> Function:
    """Outside this function is the caller of the guard: the operations that it runs do not come from there."""
    _boundaries.add(function.__code__)
    return function


@functools.lru_cache(maxsize=4096)
def is_user_code(code: CodeType) -> bool:
    """Whether code belongs to the user: not torch, not nantrap, not the interpreter."""
    name = code.co_filename
    return not name.startswith((_TORCH, _NANTRAP, *_INTERNAL)) and f"{os.sep}torch{os.sep}_" not in name


def is_installed(code: CodeType) -> bool:
    """Whether code belongs to an installed package and not to the program itself."""
    return not {"site-packages", "dist-packages"}.isdisjoint(PurePath(code.co_filename).parts)
