"""`Problem`: the result of one check outside of a guarded step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")
"""The worst first."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProblemPlace:
    """Where a problem is. `file` is empty if it is in none; lines count from 1, and 0 is the file as a whole."""

    file: str = ""
    line: int = 0


NOWHERE: Final = ProblemPlace()


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """The result of one check.

    Attributes:
        code: the stable code, `NT851`.
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
