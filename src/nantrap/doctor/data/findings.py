"""What `nantrap data` reports: one finding, the report and its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nantrap.incident.checks import DATA_RULES
from nantrap.problems import Problem, ProblemPlace

SCHEMA: Final = "nantrap.data/1"
SHOWN_INDICES: Final = 20
"""How many sample indices a finding carries in the JSON; the quarantine list has all of them."""


class DataFinding(Problem):
    """One rule that one field of one file breaks, in the words of `nantrap data`."""

    __slots__ = ()

    @property
    def slug(self) -> str:
        """The rule."""
        return self.title

    @property
    def file(self) -> str:
        """The file, as it was reached from the path that was given."""
        return self.place.file

    @property
    def field(self) -> str | None:
        """The field (array, column, key), or `None` where the file has only one or is meant as a whole."""
        return self.place.field

    @property
    def indices(self) -> tuple[int, ...]:
        """All samples concerned, from 0; the JSON shows the first 20."""
        found: tuple[int, ...] = self.data["indices"]
        return found

    @property
    def count(self) -> int:
        """How many samples are concerned."""
        return int(self.data["count"])

    def to_dict(self) -> dict[str, Any]:
        """The finding as the JSON has it."""
        return {
            "code": self.code,
            "slug": self.slug,
            "file": self.file,
            "field": self.field,
            "indices": list(self.indices[:SHOWN_INDICES]),
            "count": self.count,
            "message": self.message,
        }


def data_finding(
    slug: str, file: str, field: str | None, indices: tuple[int, ...], count: int, message: str, *, help: str = ""
) -> DataFinding:
    """The finding of the rule `slug`; the code is that of the rule, and so is what helps if nothing else is given."""
    rule = DATA_RULES[slug]
    data = {"indices": indices, "count": count}
    return DataFinding(rule.code, "error", message, help or rule.help, data, ProblemPlace(file, field=field), slug)


@dataclass(frozen=True, slots=True)
class FieldSpan:
    """The finite values of a field in all files that have it: how many, the least, the greatest and their mean."""

    field: str
    values: int
    least: float
    greatest: float
    mean: float

    def to_dict(self) -> dict[str, Any]:
        """The entry of the JSON document."""
        return {
            "field": self.field,
            "values": self.values,
            "min": self.least,
            "max": self.greatest,
            "mean": float(f"{self.mean:.9g}"),
        }


@dataclass(frozen=True, slots=True)
class DataReport:
    """What was read and what was found.

    Attributes:
        paths: what was asked for.
        lengths: every file that was read, in the order it was read, with its number of samples.
        bytes: how many bytes the files have.
        findings: what was found, file by file.
        notes: what was left out and why.
        spans: minimum, maximum and mean of each field.
        not_read: the files of a folder that no reader knows.
    """

    paths: tuple[str, ...]
    lengths: dict[str, int]
    bytes: int
    findings: tuple[DataFinding, ...] = ()
    notes: tuple[str, ...] = field(default=())
    spans: tuple[FieldSpan, ...] = ()
    not_read: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def samples(self) -> int:
        """How many samples all files hold together."""
        return sum(self.lengths.values())

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": SCHEMA,
            "files": len(self.lengths),
            "samples": self.samples,
            "bytes": self.bytes,
            "findings": [finding.to_dict() for finding in self.findings],
            "fields": [span.to_dict() for span in self.spans],
            "notes": list(self.notes),
            "not_read": list(self.not_read),
        }


def listed(indices: Sequence[int], shown: int = 5) -> str:
    """`4, 17, 901 and 12 more`."""
    text = ", ".join(f"{index:,}" for index in indices[:shown])
    return text if len(indices) <= shown else f"{text} and {len(indices) - shown:,} more"
