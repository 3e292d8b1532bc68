"""From a Python frame to the user's own line: file, line, function, text, and the columns of the guilty expression."""

from __future__ import annotations

import functools
import itertools
import linecache
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, TypeVar

import torch

import nantrap
from nantrap.incident import Source

_TORCH = os.path.dirname(torch.__file__) + os.sep
_NANTRAP = os.path.dirname(nantrap.__file__) + os.sep
_SYSTEMS = os.path.join(_NANTRAP, "systems") + os.sep
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
            function=getattr(self.code, "co_qualname", self.code.co_name),
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


def user_place(frame: FrameType | None, *, inside: str | None = None) -> Place | None:
    """The innermost frame that belongs to the user: not torch, not nantrap (its example systems count as a user's).

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
    """Beyond this function stands whoever called the guard: the operations that it runs do not come from there."""
    _boundaries.add(function.__code__)
    return function


@functools.lru_cache(maxsize=4096)
def is_user_code(code: CodeType) -> bool:
    """Whether code belongs to the user: not torch, not nantrap, not the interpreter."""
    name = code.co_filename
    if name.startswith(_SYSTEMS):
        return True
    return not name.startswith((_TORCH, _NANTRAP, *_INTERNAL)) and f"{os.sep}torch{os.sep}_" not in name
