"""`Problem`: the result of one check outside of a guarded step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

Severity = Literal["error", "warning", "note", "ok", "unjudged"]
"""`ok`: the check passed. `unjudged`: it does not apply, or what it needs is not there."""
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note", "ok", "unjudged")
"""The worst first."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProblemPlace:
    """Where a problem is.

    Attributes:
        file: the path of a file; empty if it is in none.
        line: the line, from 1; 0 is the file as a whole.
        field: the array, column or key of a data file; `None` where the file has only one or is meant as a whole.
        tensor: the tensor of a checkpoint, if it is about one.
    """

    file: str = ""
    line: int = 0
    field: str | None = None
    tensor: str | None = None


NOWHERE: Final = ProblemPlace()


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """The result of one check. A command whose users know more of it, or know it by other words, has a subclass.

    Attributes:
        code: the stable code, `NT851`, or the name of the check where checks have no codes, `loss_falls`.
        severity: how bad it is.
        message: what was seen, in one sentence.
        fix: what to do about it; empty if there is nothing to do.
        data: the measurements by name, for programs.
        place: where it is.
        title: what the code means, independent of this case.
    """

    code: str
    severity: Severity
    message: str
    fix: str = ""
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    place: ProblemPlace = NOWHERE
    title: str = ""

    @property
    def help(self) -> str:
        """What to do about it, by the name that most commands use."""
        return self.fix


def worst(problems: Iterable[Problem]) -> Severity:
    """The worst severity; `unjudged` where there is nothing to judge."""
    return min((problem.severity for problem in problems), key=SEVERITIES.index, default="unjudged")


def json_value(value: Any) -> Any:
    """A value for JSON: NaN and Inf are written as text, as is everything that is not a plain type."""
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
