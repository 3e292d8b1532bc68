"""The decorators of the checks. A check is a function that yields what it saw; its code and title stand in
`incident/checks.py`, its page in `pages/`.

    @configuration_check("both_half_flags", "high", "keep one: bf16 where the hardware has it, else fp16")
    def both_half_flags(source, repository):
        '''fp16 and bf16 are both switched on.'''
        yield Sighting(line, value, "message")

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
from nantrap.doctor.source.expressions import shown
from nantrap.incident.checks import CHECKS_BY_SLUG, CheckCode


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a check saw. `line` is in the file of the source or module unless `file` names another one.

    `risk` is what it is worth if it is certain, and `doubt` what the check could not see that makes it certain, or
    what speaks against it. The evidence (`nantrap.doctor.evidence`) decides what is printed. Risk and fix are those of
    the check where they are not given.
    """

    line: int
    value: Any
    message: str
    risk: Risk | None = None
    fix: str = ""
    file: str | None = None
    doubt: str = ""

    @classmethod
    def at(
        cls, setting: Setting, message: str, *, risk: Risk | None = None, fix: str = "", doubt: str = ""
    ) -> Sighting:
        """What was seen of a setting, at its place."""
        return cls(setting.line, setting.value, message, risk, fix, setting.file, doubt)

    @classmethod
    def of(cls, node: ast.AST, message: str, *, risk: Risk | None = None, fix: str = "", doubt: str = "") -> Sighting:
        """What was seen of an expression, at its line; the value is its text."""
        return cls(getattr(node, "lineno", 1), shown(node, 80), message, risk, fix, None, doubt)


_Function = TypeVar("_Function", bound=Callable[..., Iterator[Sighting]])


@dataclass(frozen=True, slots=True)
class RegisteredCheck:
    """One function, with the row of its code, and the risk and the fix of what it sees."""

    row: CheckCode
    risk: Risk
    fix: str
    function: Callable[..., Iterator[Sighting]]


CONFIGURATION: Final[list[RegisteredCheck]] = []
SOURCE: Final[list[RegisteredCheck]] = []


def configuration_check(slug: str, risk: Risk, fix: str) -> Callable[[_Function], _Function]:
    """Register a check of the settings of one source."""
    return _register(CONFIGURATION, slug, risk, fix)


def source_check(slug: str, risk: Risk, fix: str) -> Callable[[_Function], _Function]:
    """Register a check of one Python file."""
    return _register(SOURCE, slug, risk, fix)


def _register(table: list[RegisteredCheck], slug: str, risk: Risk, fix: str) -> Callable[[_Function], _Function]:
    def register(function: _Function) -> _Function:
        table.append(RegisteredCheck(CHECKS_BY_SLUG[slug], risk, fix, function))
        return function

    return register
