"""What `nantrap data` reports: the rules with their codes, one finding, the report and its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

SCHEMA: Final = "nantrap.data/1"
SHOWN_INDICES: Final = 20
"""How many sample indices a finding carries in the JSON; the quarantine list has all of them."""


class Rule(NamedTuple):
    """A rule of the data check: its stable code, its slug, and what to do about a finding."""

    code: str
    slug: str
    help: str


_TABLE: Final = (
    Rule("NT151", "non_finite", "repair or leave out these samples: one of them makes the whole batch NaN"),
    Rule("NT152", "overflows_half", "scale the field down, or train in bfloat16: float16 ends at 65,504"),
    Rule("NT153", "outlier", "look at these samples: wrong unit, wrong scale or a sentinel value such as 1e30"),
    Rule("NT154", "constant_sample", "look at these samples: an empty image or a silent recording; std is 0"),
    Rule("NT155", "constant_field", "the field carries no information and its std is 0; drop it or repair the export"),
    Rule("NT156", "duplicate_sample", "keep one copy; copies in training and validation make the score look too good"),
    Rule("NT157", "shape_mismatch", "these samples cannot be stacked with the others; repair or leave them out"),
    Rule("NT158", "label_out_of_range", "the loss indexes with the label: use 0..N-1, or -100 to ignore"),
    Rule("NT159", "token_out_of_range", "the embedding indexes with the id: check tokenizer and vocabulary size"),
    Rule("NT160", "empty_mask", "softmax over a row with nothing to attend to is NaN; give the row one valid position"),
    Rule("NT161", "all_labels_ignored", "the mean over zero labels is NaN; leave these rows out"),
    Rule("NT162", "ctc_infeasible", "CTC needs an input at least as long as target plus repeated labels; leave out"),
    Rule("NT163", "scale_suspect", "pixels are 0..255 in a float field; divide by 255"),
    Rule("NT164", "unreadable_file", "download or write the file again"),
)
RULES: Final = MappingProxyType({rule.slug: rule for rule in _TABLE})


@dataclass(frozen=True, slots=True)
class DataFinding:
    """One rule that one field of one file breaks.

    Attributes:
        slug: the rule.
        file: the file, as it was reached from the path that was given.
        field: the field (array, column, key), or `None` where the file has only one or is meant as a whole.
        indices: all samples concerned, from 0; the JSON shows the first 20.
        count: how many samples are concerned.
        message: what was measured.
    """

    slug: str
    file: str
    field: str | None
    indices: tuple[int, ...]
    count: int
    message: str

    @property
    def code(self) -> str:
        """The stable code, `NT151`."""
        return RULES[self.slug].code

    @property
    def help(self) -> str:
        """What to do about it."""
        return RULES[self.slug].help

    def to_dict(self) -> dict[str, Any]:
        """As in the JSON."""
        return {
            "code": self.code,
            "slug": self.slug,
            "file": self.file,
            "field": self.field,
            "indices": list(self.indices[:SHOWN_INDICES]),
            "count": self.count,
            "message": self.message,
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
    """

    paths: tuple[str, ...]
    lengths: dict[str, int]
    bytes: int
    findings: tuple[DataFinding, ...] = ()
    notes: tuple[str, ...] = field(default=())

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
            "notes": list(self.notes),
        }


def listed(indices: Sequence[int], shown: int = 5) -> str:
    """`4, 17, 901 and 12 more`."""
    text = ", ".join(f"{index:,}" for index in indices[:shown])
    return text if len(indices) <= shown else f"{text} and {len(indices) - shown:,} more"
