"""What one pass over a block of samples leaves behind: enough to judge the field, a few bytes per sample.

`Block` is what a reader returns, `Measures` what the pass made of it. Measures of consecutive blocks are joined,
in any process and any order, and judged once at the end.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from nantrap.doctor.data.roles import Role
from nantrap.doctor.data.rows import Array, Indices, Rows

Kind = Literal["float", "half", "bfloat16", "int", "bool", "image", "text", "other"]
"""`half` and `bfloat16` are held as their 16 bits; `image` is whole pixels; `text` and `other` are only counted."""

Shape = tuple[object, ...]
"""What must agree between samples: rank and dimensions, or for images the number of channels."""

NOT_A_NUMBER: Final = "not a number"
"""The shape of a sample that is text where the others are numbers."""

OTHER_WIDTH: Final = "another number of cells"
"""The shape of a row of a table that has more or fewer cells than most."""

_TOPS = 4096
_THINNING = 16


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive samples of one field.

    Attributes:
        field: its name; `None` if the file holds nothing else.
        kind: what its values are.
        rows: the values; empty for text.
        indices: the number of each sample in its file; samples that are missing or text are not among them.
        shape: the shape of each sample, if all have the same.
        shapes: the shape of each sample otherwise.
        table: a column of a table, where a number per row may be anything: a feature, a count, an id.
        missing: samples whose value is empty or null though the field has numbers.
        nan_cells: how many of `missing` are cells of text that say NaN.
        foreign: samples whose value is text though the field has numbers.
        exact: the samples' marks are digests, because the reader cannot go back to compare two samples.
        lone: the field is the only array of its file.
    """

    field: str | None
    kind: Kind
    rows: Rows
    indices: Indices
    shape: tuple[int, ...] | None = None
    shapes: tuple[tuple[object, ...], ...] = ()
    table: bool = False
    missing: Indices = dataclasses.field(default_factory=lambda: np.empty(0, dtype=np.int64))
    foreign: Indices = dataclasses.field(default_factory=lambda: np.empty(0, dtype=np.int64))
    exact: bool = True
    lone: bool = False
    nan_cells: int = 0


@dataclass(slots=True)
class Measures:
    """What is known of one field of one file after reading some of its samples.

    Attributes:
        field: its name.
        role: what it is for.
        kind: what its values are.
        table: a column of a table.
        exact: whether `marks` are digests of whole samples.
        rows: samples seen, with and without values.
        entries: samples with values: the length of `peaks`, `marks`, `numbers` and `needs`.
        missing: how many of them are empty or null.
        least_width: values of the smallest sample.
        hits: sample indices by rule.
        nan: how many values are NaN.
        infinite: how many values are Inf.
        low: the least finite value.
        high: the greatest finite value.
        label_range: the least and the greatest of the labels that are out of range.
        nan_cells: how many of the missing values are cells of text that say NaN.
        peaks: the greatest finite magnitude of each sample; NaN if it has none.
        tops: the largest peaks of a field so long that `peaks` holds only a part of them; `tops_at` are their indices.
        marks: a hash of each sample.
        positions: the index of each entry of `peaks` and `marks`; `None` if they are consecutive.
        start: the index of the first entry.
        shapes: sample indices by shape.
        numbers: the value of each sample, for lengths.
        needs: label count plus repeats of each sample, for CTC.
    """

    field: str | None
    role: Role
    kind: Kind
    table: bool = False
    exact: bool = True
    rows: int = 0
    entries: int = 0
    missing: int = 0
    least_width: int = 0
    hits: dict[str, Indices] = dataclasses.field(default_factory=dict)
    nan: int = 0
    infinite: int = 0
    low: float | None = None
    high: float | None = None
    label_range: tuple[float | None, float | None] = (None, None)
    nan_cells: int = 0
    peaks: Array | None = None
    tops: Array | None = None
    tops_at: Indices | None = None
    marks: Array | None = None
    positions: Indices | None = None
    start: int = 0
    shapes: dict[Shape, Indices] = dataclasses.field(default_factory=dict)
    numbers: Array | None = None
    needs: Array | None = None

    def found(self, slug: str) -> Indices:
        """The samples that break a rule, sorted."""
        return self.hits.get(slug, _NONE)

    def at(self, entries: Array) -> Indices:
        """The sample indices of these entries of `peaks` or `marks`."""
        return entries + self.start if self.positions is None else self.positions[entries]


_NONE: Indices = np.empty(0, dtype=np.int64)


def joined(parts: Sequence[Measures]) -> Measures:
    """The measures of several blocks of one field, in the order of their samples."""
    parts = sorted(parts, key=lambda part: _first(part))
    whole = Measures(
        parts[0].field,
        parts[0].role,
        _joined_kind(parts),
        table=any(part.table for part in parts),
        exact=all(part.exact for part in parts),
        rows=sum(part.rows for part in parts),
        entries=sum(part.entries for part in parts),
        missing=sum(part.missing for part in parts),
        least_width=min((part.least_width for part in parts if part.entries), default=0),
        nan=sum(part.nan for part in parts),
        infinite=sum(part.infinite for part in parts),
        low=min((part.low for part in parts if part.low is not None), default=None),
        high=max((part.high for part in parts if part.high is not None), default=None),
        label_range=(
            min((part.label_range[0] for part in parts if part.label_range[0] is not None), default=None),
            max((part.label_range[1] for part in parts if part.label_range[1] is not None), default=None),
        ),
        nan_cells=sum(part.nan_cells for part in parts),
    )
    for slug in {slug: None for part in parts for slug in part.hits}:
        whole.hits[slug] = np.unique(np.concatenate([part.found(slug) for part in parts]))
    for shape in {shape: None for part in parts for shape in part.shapes}:
        whole.shapes[shape] = np.concatenate([part.shapes.get(shape, _NONE) for part in parts])
    for name in ("peaks", "tops", "tops_at", "marks", "numbers", "needs"):
        arrays = [getattr(part, name) for part in parts if part.entries]
        if arrays and all(array is not None for array in arrays):
            setattr(whole, name, np.concatenate(arrays))
    whole.start, whole.positions = _joined_positions([part for part in parts if part.entries])
    return whole


def moved(made: Measures, by: int) -> Measures:
    """The same measures with every sample counted from another beginning."""
    if not by:
        return made
    return dataclasses.replace(
        made,
        hits={slug: indices + by for slug, indices in made.hits.items()},
        shapes={shape: indices + by for shape, indices in made.shapes.items()},
        tops_at=None if made.tops_at is None else made.tops_at + by,
        positions=None if made.positions is None else made.positions + by,
        start=made.start + by,
    )


def thinned(made: Measures) -> Measures:
    """Keep every 16th peak and the largest ones: for an array of a billion numbers, 250 MB instead of 4 GB.

    The median is taken from the peaks that are kept, and outliers are among the largest.
    """
    if made.peaks is None or made.marks is not None:
        return made
    with np.errstate(invalid="ignore"):
        known = np.where(np.isfinite(made.peaks), made.peaks, -1)
    top = np.argpartition(known, -_TOPS)[-_TOPS:] if len(known) > _TOPS else np.arange(len(known))
    made.tops, made.tops_at = made.peaks[top].copy(), made.at(top)
    made.peaks = made.peaks[::_THINNING].copy()
    return made


def _first(part: Measures) -> int:
    return int(part.positions[0]) if part.positions is not None and len(part.positions) else part.start


def _joined_positions(parts: Sequence[Measures]) -> tuple[int, Indices | None]:
    """Consecutive blocks need no list of indices: for an array of a billion numbers it would be 8 GB."""
    if not parts:
        return 0, None
    follows = all(before.start + before.entries == after.start for before, after in itertools.pairwise(parts))
    if follows and all(part.positions is None for part in parts):
        return parts[0].start, None
    return 0, np.concatenate(
        [
            part.positions if part.positions is not None else np.arange(part.start, part.start + part.entries)
            for part in parts
        ]
    )


def _joined_kind(parts: Sequence[Measures]) -> Kind:
    """A column may look whole in one block and not in the next; one block of text does not make a text column."""
    kinds = {part.kind for part in parts if part.entries}
    for kind in ("image", "float", "half", "bfloat16", "int", "bool"):
        if kind in kinds:
            return kind
    return parts[0].kind
