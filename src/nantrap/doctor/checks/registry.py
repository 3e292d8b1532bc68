"""The checks by code. A check is a function that yields what it found; its docstring is its page.

    @configuration_check("NT802", "both_half_flags")
    def both_half_flags(source, repository):
        '''Title. ...'''
        yield Found("high", setting, value, "message", "fix")

A code may have a check of configurations and one of source code; the page is the docstring of the one that has one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nantrap.doctor.findings import Risk

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class Found:
    """What a check saw. `line` is in the file of the source or module unless `file` names another one."""

    risk: Risk
    line: int
    value: Any
    message: str
    fix: str
    file: str | None = None


_Function = TypeVar("_Function", bound=Callable[..., Iterator[Found]])


@dataclass(frozen=True, slots=True)
class Check:
    """One registered function."""

    code: str
    slug: str
    function: Callable[..., Iterator[Found]]


CONFIGURATION: Final[list[Check]] = []
SOURCE: Final[list[Check]] = []
PAGES: Final[dict[str, tuple[str, str]]] = {}
"""Slug and docstring by code."""


def configuration_check(code: str, slug: str) -> Callable[[_Function], _Function]:
    """Register a check of the settings of one source."""
    return _register(CONFIGURATION, code, slug)


def source_check(code: str, slug: str) -> Callable[[_Function], _Function]:
    """Register a check of one Python file."""
    return _register(SOURCE, code, slug)


def _register(table: list[Check], code: str, slug: str) -> Callable[[_Function], _Function]:
    """A decorator that adds a check to a table, and its docstring to the pages if it is one."""

    def register(function: _Function) -> _Function:
        table.append(Check(code, slug, function))
        page = inspect.cleandoc(function.__doc__ or "")
        if "\nFix:" in page:
            assert code not in PAGES, f"two pages for {code}"
            PAGES[code] = (slug, page)
        return function

    return register
