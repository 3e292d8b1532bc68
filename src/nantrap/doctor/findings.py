"""What the doctor reports: findings, notes about files it could not read, and the whole report. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

SCHEMA: Final = "nantrap.doctor/1"

Risk = Literal["high", "medium", "low"]
RISKS: Final[tuple[Risk, ...]] = ("high", "medium", "low")


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem at one place. `value` is what was read there, as the file has it."""

    code: str
    slug: str
    risk: Risk
    file: str
    line: int
    value: Any
    message: str
    fix: str

    def to_dict(self) -> dict[str, Any]:
        """The finding as `--json` prints it."""
        return {
            "code": self.code,
            "slug": self.slug,
            "risk": self.risk,
            "file": self.file,
            "line": self.line,
            "value": _plain(self.value),
            "message": self.message,
            "fix": self.fix,
        }


@dataclass(frozen=True, slots=True)
class Note:
    """A file or folder that was left out, and why. Never a reason to stop."""

    file: str
    message: str
    line: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The note as `--json` prints it."""
        return {"file": self.file, "line": self.line, "message": self.message}


@dataclass(frozen=True, slots=True)
class Fact:
    """One row of the status: a value and the place where it is set."""

    name: str
    value: Any
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one examination found."""

    files_read: tuple[str, ...] = ()
    status: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()
    alignment: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 if any finding is of high risk, else 0."""
        return 1 if any(finding.risk == "high" for finding in self.findings) else 0

    def to_dict(self) -> dict[str, Any]:
        """The report as `--json` prints it."""
        return {
            "schema": SCHEMA,
            "files_read": list(self.files_read),
            "status": {file: dict(values) for file, values in self.status.items()},
            "facts": [
                {"name": each.name, "value": _plain(each.value), "file": each.file, "line": each.line}
                for each in self.facts
            ],
            "aligned": not self.alignment,
            "findings": [finding.to_dict() for finding in self.findings],
            "notes": [note.to_dict() for note in self.notes],
        }


def _plain(value: Any) -> Any:
    """A value that JSON can hold: not Inf or NaN, and nothing that is not a plain type."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value)
