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
    """A rule of the data check: its stable code, its slug, when it fires, and what to do about a finding."""

    code: str
    slug: str
    fires: str
    help: str

    def text(self) -> str:
        """The page that `nantrap explain` prints."""
        return f"{self.code} {self.slug}: {self.fires}\n\nFix:\n    {self.help}\n\nFound by: nantrap data PATH..."


_TABLE: Final = (
    Rule(
        "NT151",
        "non_finite",
        "a sample holds NaN or Inf, an empty cell in a column of numbers, or a null",
        "repair or leave out these samples: one of them makes the whole batch NaN",
    ),
    Rule(
        "NT152",
        "overflows_half",
        "a magnitude is above 65,504, the largest float16; only with --dtype float16",
        "scale the field down, or train in bfloat16: float16 ends at 65,504",
    ),
    Rule(
        "NT153",
        "outlier",
        "a sample's largest magnitude is above 50 times the median of those of all samples",
        "check these samples: wrong unit, wrong scale or a sentinel value such as 1e30",
    ),
    Rule(
        "NT154",
        "constant_sample",
        "16 or more equal values in a sample of floats or pixels; not reported if a tenth of the samples are constant",
        "check these samples: an empty image or a silent recording; std is 0",
    ),
    Rule(
        "NT155",
        "constant_field",
        "a field has one value in all of its 16 or more samples",
        "the field carries no information and its std is 0; drop it or repair the export",
    ),
    Rule(
        "NT156",
        "duplicate_sample",
        "a sample is a later copy: floats, pixels or token ids with 16 or more values, or a whole row of a CSV file",
        "keep one copy; copies in training and validation make the score look too good",
    ),
    Rule(
        "NT157",
        "shape_mismatch",
        "rank or sizes of a sample are unlike most, or fields of a file differ in length; never the size of images",
        "these samples cannot be stacked with the others; repair or leave them out",
    ),
    Rule(
        "NT158",
        "label_out_of_range",
        "a label is outside 0..N-1 and is not -100; only with --classes N",
        "the loss indexes with the label: use 0..N-1, or -100 to ignore",
    ),
    Rule(
        "NT159",
        "token_out_of_range",
        "a token id is outside 0..N-1; only with --vocab N",
        "the embedding indexes with the id: check tokenizer and vocabulary size",
    ),
    Rule(
        "NT160",
        "empty_mask",
        "a row of a mask holds no 1",
        "softmax over a row with nothing to attend to is NaN; give the row one valid position",
    ),
    Rule(
        "NT161",
        "all_labels_ignored",
        "every label of a row is -100",
        "the mean over zero labels is NaN; leave these rows out",
    ),
    Rule(
        "NT162",
        "ctc_infeasible",
        "a CTC target, plus one for each pair of equal neighbours, is longer than its input",
        "CTC needs an input at least as long as target plus repeated labels; leave out",
    ),
    Rule(
        "NT163",
        "scale_suspect",
        "images of floats hold whole numbers with a maximum of 128 to 255",
        "pixels are 0..255 in a float field; divide by 255",
    ),
    Rule(
        "NT164",
        "unreadable_file",
        "a file is cut, empty, damaged, not what its name says, or changed while it was read; a dataset that raises",
        "download or write the file again; where your own dataset raised, repair it or leave these samples out",
    ),
)
RULES: Final = MappingProxyType({rule.slug: rule for rule in _TABLE})


def rule_of(code: str) -> Rule | None:
    """The rule of a code. Slugs are not looked up: some are also slugs of causes."""
    return next((rule for rule in _TABLE if rule.code == code.strip().upper()), None)


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
