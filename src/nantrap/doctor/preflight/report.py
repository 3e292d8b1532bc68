"""What a preflight found: a list of checks, each with a status, a line of words and its measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from nantrap.problems import Problem, Severity
from nantrap.problems.problem import json_value

SCHEMA: Final = "nantrap.preflight/1"

Status = Literal["ok", "warn", "fail", "skip"]
"""`skip` means that the check does not apply: no mask in the batch, an operation without half precision."""
STATUSES: Final[dict[Severity, Status]] = {"ok": "ok", "warning": "warn", "error": "fail", "unjudged": "skip"}


class PreflightCheck(Problem):
    """One check, in the words of `nantrap preflight`."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The check: `edge: zeros`."""
        return self.code

    @property
    def status(self) -> Status:
        """How it went."""
        return STATUSES[self.severity]

    @property
    def values(self) -> Mapping[str, Any]:
        """The measurements, for the JSON."""
        return self.data

    def to_dict(self) -> dict[str, Any]:
        """The check as the JSON has it."""
        return {
            "name": self.name,
            "status": self.status,
            "message": self.message,
            "help": self.help,
            "values": json_value(self.values),
        }


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """All checks of one model, or of one device.

    Attributes:
        target: what was tested.
        summary: model, number of parameters, optimizer, batch, in one line.
        checks: in the order they were made.
        seconds: how long it took.
        schema: the name of the JSON document.
    """

    target: str
    summary: str
    checks: tuple[PreflightCheck, ...]
    seconds: float
    schema: str = SCHEMA

    @property
    def passed(self) -> bool:
        """Whether no check failed; warnings are allowed."""
        return not self.failures

    @property
    def failures(self) -> tuple[PreflightCheck, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.status == "fail")

    @property
    def warnings(self) -> tuple[PreflightCheck, ...]:
        """The checks that warned."""
        return tuple(check for check in self.checks if check.status == "warn")

    def check(self, name: str) -> PreflightCheck:
        """The check of this name."""
        return next(check for check in self.checks if check.name == name)

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": self.schema,
            "target": self.target,
            "summary": self.summary,
            "passed": self.passed,
            "seconds": round(self.seconds, 3),
            "checks": [check.to_dict() for check in self.checks],
        }
