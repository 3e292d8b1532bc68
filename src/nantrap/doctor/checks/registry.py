"""The decorators of the checks. A check is a function that yields what it saw; its code and title stand in
`incident/checks.py`, its page in `pages/`.

    @configuration_check("both_half_flags")
    def both_half_flags(source, repository):
        '''fp16 and bf16 are both switched on.'''
        yield Sighting("high", line, value, "message", "fix")

A code may have a check of configurations and one of source code. The report has one finding for a code and a line: a
check may see a line twice.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from nantrap.doctor.configuration.setting import Setting
from nantrap.doctor.report import Risk
from nantrap.incident.checks import CHECKS_BY_SLUG, CheckCode


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a check saw. `line` is in the file of the source or module unless `file` names another one.

    `risk` is what it is worth if it is certain, and `doubt` what the check could not see that makes it certain, or
    what speaks against it. The evidence (`nantrap.doctor.evidence`) decides what is printed.
    """

    risk: Risk
    line: int
    value: Any
    message: str
    fix: str
    file: str | None = None
    doubt: str = ""

    @classmethod
    def at(cls, setting: Setting, risk: Risk, message: str, fix: str, *, doubt: str = "") -> Sighting:
        """What was seen of a setting, at its place."""
        return cls(risk, setting.line, setting.value, message, fix, setting.file, doubt)

    @classmethod
    def of(cls, node: ast.expr, risk: Risk, message: str, fix: str, *, doubt: str = "") -> Sighting:
        """What was seen of an expression, at its line; the value is its text."""
        return cls(risk, node.lineno, ast.unparse(node)[:80], message, fix, None, doubt)


_Function = TypeVar("_Function", bound=Callable[..., Iterator[Sighting]])


@dataclass(frozen=True, slots=True)
class RegisteredCheck:
    """One function, with the row of its code."""

    row: CheckCode
    function: Callable[..., Iterator[Sighting]]


CONFIGURATION: Final[list[RegisteredCheck]] = []
SOURCE: Final[list[RegisteredCheck]] = []


def configuration_check(slug: str) -> Callable[[_Function], _Function]:
    """Register a check of the settings of one source."""
    return _register(CONFIGURATION, slug)


def source_check(slug: str) -> Callable[[_Function], _Function]:
    """Register a check of one Python file."""
    return _register(SOURCE, slug)


def _register(table: list[RegisteredCheck], slug: str) -> Callable[[_Function], _Function]:
    def register(function: _Function) -> _Function:
        table.append(RegisteredCheck(CHECKS_BY_SLUG[slug], function))
        return function

    return register
