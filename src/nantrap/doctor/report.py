"""The report of an examination, for people and for machines. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from nantrap.incident.wording import counted, visible
from nantrap.pages import check_pages
from nantrap.problems import Problem, ProblemPlace, Severity
from nantrap.problems.github import annotation
from nantrap.problems.problem import SEVERITIES, json_value
from nantrap.problems.sarif import sarif_document
from nantrap.problems.terminal import Line, source_problem

SCHEMA: Final = "nantrap.doctor/1"

Risk = Literal["high", "medium", "low"]
SEVERITY_OF: Final[Mapping[Risk, Severity]] = {"high": "error", "medium": "warning", "low": "note"}
RISK_OF: Final[Mapping[Severity, Risk]] = {severity: risk for risk, severity in SEVERITY_OF.items()}

_ROWS: Final = (
    "AMP", "fp16", "learning rate", "smallest lr", "warm-up", "clipping", "accumulation", "batch size", "optimizer",
    "mixed precision", "distributed type", "devices", "temperature", "student temp", "teacher temp", "beta",
    "streams",
)  # fmt: skip
_SHOWN_FILES: Final = 6
_SHOWN_NOTES: Final = 20
_SHOWN_PLACES: Final = 4
"""In a terminal; --json has all."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file or folder that was left out, and why. Never a reason to stop."""

    file: str
    message: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """One row of the status: a value and the place where it is set."""

    name: str
    value: Any
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """Everything that one examination found.

    The `title` of a finding is the slug of its check; `data["places"]` are further places of which the same is said.
    """

    files_read: tuple[str, ...] = ()
    status: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()
    alignment: tuple[str, ...] = ()
    findings: tuple[Problem, ...] = ()
    notes: tuple[LeftOut, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 if any finding is of high risk, else 0."""
        return 1 if any(finding.severity == "error" for finding in self.findings) else 0

    def to_dict(self) -> dict[str, Any]:
        """The report as `--json` prints it."""
        return {
            "schema": SCHEMA,
            "files_read": list(self.files_read),
            "status": {file: dict(values) for file, values in self.status.items()},
            "facts": [
                {"name": each.name, "value": json_value(each.value), "file": each.file, "line": each.line}
                for each in self.facts
            ],
            "aligned": not self.alignment,
            "findings": [_finding_values(finding) for finding in self.findings],
            "notes": [{"file": each.file, "line": each.line, "message": each.message} for each in self.notes],
        }


def places_of(finding: Problem) -> tuple[ProblemPlace, ...]:
    """Every place of a finding, the first one first."""
    return (finding.place, *finding.data.get("places", ()))


def as_sarif(report: DoctorReport) -> str:
    """SARIF 2.1.0, for code scanning."""
    used = {finding.code for finding in report.findings}
    rules = [
        {
            "id": page.code,
            "name": page.slug,
            "shortDescription": {"text": page.title},
            "fullDescription": {"text": " ".join(page.what.split())},
            "help": {"text": page.text(), "markdown": page.markdown()},
        }
        for page in check_pages()
        if page.code in used
    ]
    document = sarif_document(list(_each_place(report)), tool="nantrap doctor", rules=rules)
    return json.dumps(document, indent=2, ensure_ascii=False)


def as_github(report: DoctorReport) -> str:
    """One workflow command for each place of a finding: an annotation at the line."""
    return "\n".join(map(annotation, _each_place(report)))


def _each_place(report: DoctorReport) -> Iterator[Problem]:
    """The findings, each once for every place: code scanning shows them at their lines."""
    return (replace(finding, place=place) for finding in report.findings for place in places_of(finding))


def as_lines(report: DoctorReport) -> Iterator[Line]:
    """The report for a person: the status first, then the findings with the line they are about."""
    yield from _status(report)
    yield from _alignment(report)
    yield ()
    texts: dict[str, list[str]] = {}
    for finding in sorted(
        report.findings, key=lambda each: (SEVERITIES.index(each.severity), each.place.file, each.place.line)
    ):
        yield from source_problem(finding, RISK_OF[finding.severity], _source_line(finding, texts))
        yield from _further(finding)
    for note in report.notes[:_SHOWN_NOTES]:
        where = f"{note.file}:{note.line}" if note.line else note.file
        yield ("note", "dim"), f": {visible(where)}: {visible(note.message)}"
    if len(report.notes) > _SHOWN_NOTES:
        yield (f"note: {len(report.notes) - _SHOWN_NOTES:,} more files were left out (--json lists all)",)
    yield (_summary(report),)


def _finding_values(finding: Problem) -> dict[str, Any]:
    """The finding as `--json` prints it. `value` is what was read there, as the file has it.

    `places` is there if the same is said of several places, and has all of them.
    """
    places = places_of(finding)
    return {
        "code": finding.code,
        "slug": finding.title,
        "risk": RISK_OF[finding.severity],
        "file": finding.place.file,
        "line": finding.place.line,
        "value": json_value(finding.data["value"]),
        "message": finding.message,
        "fix": finding.fix,
    } | ({"places": [{"file": each.file, "line": each.line} for each in places]} if len(places) > 1 else {})


def _status(report: DoctorReport) -> Iterator[Line]:
    """The block of settings: every value with its file and line."""
    if not report.facts:
        yield ("no training settings were found",)
        return
    yield (("settings", "bold"),)
    files = list(dict.fromkeys(fact.file for fact in report.facts))
    for file in files[:_SHOWN_FILES]:
        yield (f"  {visible(file)}",)
        facts = [fact for fact in report.facts if fact.file == file]
        for fact in sorted(facts, key=lambda each: _ROWS.index(each.name)):
            yield f"    {fact.name:<17} ", (_shown(fact), "bold"), (f"  line {fact.line}", "dim")
    if len(files) > _SHOWN_FILES:
        yield (f"  and {len(files) - _SHOWN_FILES:,} more files with settings (--json lists all)",)


def _alignment(report: DoctorReport) -> Iterator[Line]:
    """Whether files that name a precision contradict each other, in one line."""
    named = {fact.file for fact in report.facts if fact.name == "mixed precision"}
    if report.alignment:
        yield "  ", ("not aligned", "bold red"), f": {counted(len(report.alignment), 'contradiction')}, see below"
    elif len(named) > 1:
        yield "  ", ("aligned", "bold green"), ": no two files contradict each other"


def _further(finding: Problem) -> Iterator[Line]:
    """The other places of a finding, a few of them."""
    others = [f"{visible(each.file)}:{each.line}" for each in places_of(finding)[1:]]
    for where in others[:_SHOWN_PLACES]:
        yield "  also at ", (where, "dim")
    if len(others) > _SHOWN_PLACES:
        yield (f"  and at {counted(len(others) - _SHOWN_PLACES, 'more place')} (--json lists all)",)


def _source_line(finding: Problem, texts: dict[str, list[str]]) -> str:
    """The line of a finding; its file is read once and kept in `texts`. Empty if it cannot be read."""
    file, line = finding.place.file, finding.place.line
    if file not in texts:
        try:
            with open(file, encoding="utf-8", errors="replace") as stream:
                texts[file] = stream.read().splitlines()
        except OSError:
            texts[file] = []
    lines = texts[file]
    return lines[line - 1] if 0 < line <= len(lines) else ""


def _summary(report: DoctorReport) -> str:
    counts = [(risk, sum(each.severity == severity for each in report.findings)) for severity, risk in RISK_OF.items()]
    parts = ", ".join(f"{count} {risk}" for risk, count in counts if count) or "no findings"
    more = "; `nantrap explain CODE` explains each" if report.findings else ""
    return f"{counted(len(report.files_read), 'file')} read: {parts}{more}"


def _shown(fact: Fact) -> str:
    value: Any = fact.value
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else visible(value)
