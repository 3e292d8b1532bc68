"""What a preflight found: a list of checks, each with a status, a line of words and its measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

SCHEMA: Final = "nantrap.preflight/1"

Status = Literal["ok", "warn", "fail", "skip"]
"""`skip` means that the check does not apply: no mask in the batch, an operation without half precision."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        name: `edge: zeros`.
        status: how it went.
        message: what was measured, in one line.
        help: what to do about it.
        values: the measurements, for the JSON.
    """

    name: str
    status: Status
    message: str
    help: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As in the JSON."""
        return {
            "name": self.name,
            "status": self.status,
            "message": self.message,
            "help": self.help,
            "values": _jsonable(dict(self.values)),
        }


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """All checks of one model.

    Attributes:
        target: what was tested.
        summary: model, number of parameters, optimizer, batch, in one line.
        checks: in the order they were made.
        seconds: how long it took.
    """

    target: str
    summary: str
    checks: tuple[Check, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether no check failed; warnings are allowed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.status == "fail")

    def check(self, name: str) -> Check:
        """The check of this name."""
        return next(check for check in self.checks if check.name == name)

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": SCHEMA,
            "target": self.target,
            "summary": self.summary,
            "passed": self.passed,
            "seconds": round(self.seconds, 3),
            "checks": [check.to_dict() for check in self.checks],
        }


def _jsonable(value: Any) -> Any:
    """JSON has no NaN and no Inf: they become text."""
    if isinstance(value, dict):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(inner) for inner in value]
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return str(value)
    return value
