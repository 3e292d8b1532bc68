"""What one check of a run found, in the words of `nantrap check`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal

from nantrap.incident.wording import percent
from nantrap.problems import Problem, Severity
from nantrap.problems.problem import json_value

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


def number(value: float) -> str:
    """Four digits, as people write them: `2.341`, `1.23e-05`, `NaN`."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    return f"{value:.4g}"


def share(part: int, total: int) -> str:
    """`3 of 1,204 (0.25%)`; less than all is never called 100%."""
    return f"{part:,} of {total:,} ({percent(part, total).replace(' ', '')})" if total else "0 of 0"
