"""What one check of a run found, in the words of `nantrap check`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from nantrap.problems import Problem, Severity
from nantrap.problems.json_values import json_value

CheckOutcome = Literal["pass", "warn", "fail", "unknown"]
OUTCOMES: Final[dict[Severity, CheckOutcome]] = {
    "ok": "pass", "note": "pass", "warning": "warn", "error": "fail", "unjudged": "unknown",
}  # fmt: skip
"""The words of `nantrap check`. `unknown`: the log does not hold what the check needs."""


class HealthFinding(Problem):
    """The result of one check of a run, in the words of `nantrap check`."""

    __slots__ = ()

    @property
    def check(self) -> str:
        """The name of the check (`loss_falls`, `applied`, ...)."""
        return self.code

    @property
    def outcome(self) -> CheckOutcome:
        """`pass`, `warn`, `fail`, or `unknown` where the log does not hold what the check needs."""
        return OUTCOMES[self.severity]

    @property
    def summary(self) -> str:
        """One sentence with the numbers."""
        return self.message

    @property
    def evidence(self) -> Mapping[str, Any]:
        """The numbers by name, for programs."""
        return self.data

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "check": self.check,
            "outcome": self.outcome,
            "summary": self.summary,
            "evidence": json_value(self.evidence),
            "help": self.help,
        }
