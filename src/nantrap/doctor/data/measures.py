"""What one pass over a block of samples leaves behind: enough to judge the field, a few bytes per sample.

A reader returns a `Block`, `measure` makes `Measures` of it. Measures of consecutive blocks are joined, in any process
and any order, and judged once at the end. The order of the pass matters for speed: the greatest and the least value of
each sample are read first; NaN and Inf show in them. Everything else is measured only in the samples for which these
two numbers leave a question open.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nantrap.doctor.data.roles import DataOptions, FieldRole, is_image_name, is_inverted_mask, role_of
from nantrap.doctor.data.rows import Array, Block, Indices, Rows, SampleShape, ValueKind
from nantrap.thresholds import FLOAT16_MAX, MASKED

_IGNORED = -100
"""The label that PyTorch's losses leave out."""
_SHORT = 16
"""Samples with fewer values than this may be constant or equal by chance."""
_NONE: Indices = np.empty(0, dtype=np.int64)
_TOPS = 4096
_THINNING = 16


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
        total: the sum of the finite values, and `values` how many there are.
        span: the least and the greatest finite value, exact in half precision too, where `low` and `high` are bounds.
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
    role: FieldRole
    kind: ValueKind
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
    total: float = 0.0
    values: int = 0
    span: tuple[float, float] | None = None
    label_range: tuple[float | None, float | None] = (None, None)
    nan_cells: int = 0
    peaks: Array | None = None
    tops: Array | None = None
    tops_at: Indices | None = None
    marks: Array | None = None
    positions: Indices | None = None
    start: int = 0
    shapes: dict[SampleShape, Indices] = dataclasses.field(default_factory=dict)
    numbers: Array | None = None
    needs: Array | None = None

    def found(self, slug: str) -> Indices:
        """The samples that break a rule, sorted."""
        return self.hits.get(slug, _NONE)

    def at(self, entries: Array) -> Indices:
        """The sample indices of these entries of `peaks` or `marks`."""
        return entries + self.start if self.positions is None else self.positions[entries]


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
        total=sum(part.total for part in parts),
        values=sum(part.values for part in parts),
        span=joined_span([part.span for part in parts]),
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


def joined_span(spans: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    """The span that holds all of these."""
    known = [span for span in spans if span is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None


def moved(made: Measures, by: int) -> Measures:
    """Moves measures to another first sample."""
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


def _joined_kind(parts: Sequence[Measures]) -> ValueKind:
    """A column may look whole in one block and not in the next; one block of text does not make a text column."""
    kinds = {part.kind for part in parts if part.entries}
    for kind in ("image", "float", "half", "bfloat16", "int", "bool"):
        if kind in kinds:
            return kind
    return parts[0].kind


def measure(block: Block, options: DataOptions, *, file_stem: str) -> Measures:
    """Measure one block.

    Args:
        block: samples of one field.
        options: what the user gave about the data.
        file_stem: names the field of a file that holds only one array.
    """
    name = block.field if block.field is not None else file_stem
    role = _role(block, name, options)
    made = Measures(block.field, role, block.kind, table=block.table, exact=block.exact)
    made.entries, made.missing, made.nan_cells = len(block.indices), len(block.missing), block.nan_cells
    made.rows = made.entries + len(block.missing) + len(block.foreign)
    if len(block.indices):
        made.start = int(block.indices[0])
        if int(block.indices[-1]) - made.start != len(block.indices) - 1:
            made.positions = block.indices
    if block.exact:
        _note_shapes(made, block)
    if len(block.missing):
        made.hits["missing"] = block.missing
    if len(block.foreign):
        made.hits["foreign"] = block.foreign
    rows = block.rows
    if block.kind in ("text", "other") or rows.count == 0:
        return made
    widths = rows.widths
    made.least_width = int(widths.min())
    _measure_values(made, block, options, name)
    if _compares(made.kind, role, rows) and not (block.lone and _is_one_image(block)):
        made.marks = rows.digests() if block.exact or rows.starts is not None else rows.marks()
        made.exact = block.exact or rows.starts is not None
    if role in ("input_length", "target_length") and made.least_width == 1 and rows.width == 1:
        made.numbers = rows.flat.astype(np.float64)
    if role in ("label", "target", "token", "feature") and block.kind == "int" and block.exact:
        made.needs = _ctc_needs(rows) if block.shape != () else None
    return made


def _role(block: Block, name: str, options: DataOptions) -> FieldRole:
    """The role by name, unless the kind of the values contradicts it.

    A float array called `positions` is a feature and no id; a column called `weight` is a feature and no statistic. The
    name of a file is less reliable than the name of a field: only labels, masks, ids and lengths are taken from it.
    """
    role = role_of(name, options)
    floats = block.kind in ("float", "half", "bfloat16")
    if role == "constant" and block.table:
        return "feature"
    if role == "identifier" and floats and not block.table:
        return "feature"
    if role in ("input_length", "target_length") and floats and block.rows.width != 1:  # the frames of a video
        return "feature"
    if block.field is None and role not in ("feature", "mask", "token"):
        last = name.lower().rpartition("_")[2].rpartition("-")[2]
        if role in ("input_length", "target_length"):
            return role if last in ("length", "lengths", "len", "lens", "frames") else "feature"
        if role in ("identifier", "constant"):
            return "feature"
        if role == "label" and floats and block.rows.width != 1 and options.labels is None:
            return role if any(word in name.lower() for word in ("label", "target")) else "feature"
    return role


def _measure_values(made: Measures, block: Block, options: DataOptions, name: str) -> None:
    """Everything that depends on the values, by kind. Floats of 16 bits are read as float32, which has all of them."""
    if made.kind in ("half", "bfloat16"):
        block = dataclasses.replace(
            block, kind="float", rows=dataclasses.replace(block.rows, flat=_from_bits(block.rows.flat, made.kind))
        )
    rows, floats = block.rows, block.kind == "float"
    peaks, low, high, equal = _extremes(made, block)
    _add_up(made, rows.flat)
    if floats or block.table:
        made.peaks = peaks
    if options.dtype == "float16" and made.kind != "half" and (floats or block.table):
        _hit(made, "overflows_half", peaks > FLOAT16_MAX, block)
    if floats or block.kind == "image":
        _hit(made, "constant_sample", equal & (rows.widths >= _SHORT), block)
    if floats and _looks_like_image(block, name):
        candidates = np.flatnonzero((high >= 128) & (high <= 255) & (low >= 0))
        whole = np.zeros(rows.count, dtype=np.bool_)
        for index in candidates:
            values = rows.row(int(index))
            whole[index] = bool((values == np.trunc(values)).all())
        _hit(made, "scale_suspect", whole, block)
    if made.role == "mask":
        _hit(made, "empty_mask", _empty_mask(block, name), block)
    if made.kind in ("int", "float", "image", "bool"):
        _measure_classes(made, block, options, low, high)


def _add_up(made: Measures, values: Array) -> None:
    """Sum and span of the finite values. A float sum is pairwise, so its rounding does not show in a mean."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = float(values.sum())
        if not np.isfinite(total):
            values = values[np.isfinite(values)]
            total = float(values.sum(dtype=np.float64))
    made.total, made.values = total, int(values.size)
    if made.low is not None and made.high is not None:
        made.span = made.low, made.high


def _extremes(made: Measures, block: Block) -> tuple[Array, Array, Array, Array]:
    """Peak, least and greatest finite value of each sample, and whether all its values are equal."""
    rows, flat = block.rows, block.rows.flat
    with np.errstate(invalid="ignore", over="ignore"):
        if block.kind != "float":
            high = rows.reduce(np.maximum, flat, empty=0)
            low = rows.reduce(np.minimum, flat, empty=0)
            if high.dtype == np.bool_:
                high, low = high.view(np.uint8), low.view(np.uint8)
            filled = rows.widths > 0
            if filled.any():
                made.low, made.high = float(low[filled].min()), float(high[filled].max())
            peaks = np.maximum(np.abs(high.astype(np.float64)), np.abs(low.astype(np.float64)))
            return peaks, low, high, low == high
        high = rows.reduce(np.maximum, flat, empty=np.nan)
        low = rows.reduce(np.minimum, flat, empty=np.nan)
        bad = ~(np.isfinite(high) & np.isfinite(low)) & (rows.widths > 0)
        equal = (low == high) & ~bad
        if bad.any():
            high, low = high.copy(), low.copy()
            _look_at_bad(made, block, np.flatnonzero(bad), low, high, additive=made.role == "mask")
        finite = np.isfinite(high)
        if finite.any():
            made.low, made.high = float(low[finite].min()), float(high[finite].max())
        return np.maximum(np.abs(high), np.abs(low)), low, high, equal


def _look_at_bad(made: Measures, block: Block, bad: Array, low: Array, high: Array, *, additive: bool) -> None:
    """Count NaN and Inf in the samples that hold any, and take the extremes of what is finite there."""
    hits = []
    for index in bad:
        values = block.rows.row(int(index))
        finite = values[np.isfinite(values)]
        nan, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
        low[index], high[index] = (finite.min(), finite.max()) if len(finite) else (np.nan, np.nan)
        if additive and not nan and not np.isposinf(values).any():
            continue  # -inf in an additive mask is intended
        made.nan += nan
        made.infinite += infinite
        hits.append(int(block.indices[index]))
    if hits:
        made.hits["non_finite"] = np.array(hits, dtype=np.int64)


def _from_bits(bits: Array, kind: str) -> Array:
    """The values of float16 or bfloat16, which numpy lacks, from their 16 bits."""
    if kind == "half":
        return bits.astype(np.uint16).view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _measure_classes(made: Measures, block: Block, options: DataOptions, low: Array, high: Array) -> None:
    """Labels and token ids against their ranges, and rows in which every label is ignored.

    A field whose name has no known role is measured as both; the judge uses that only if it is the only candidate.
    """
    rows, flat = block.rows, block.rows.flat
    is_label = made.role == "label"
    if options.classes is not None and (is_label or (made.role == "feature" and block.kind == "int")):
        suspicious = (low < 0) | (high >= options.classes)
        if suspicious.any():
            outside = ((flat < 0) | (flat >= options.classes)) & (flat != _IGNORED)
            if block.kind == "float":
                outside &= np.isfinite(flat)
            _hit(made, "label_out_of_range", rows.any(outside), block)
            worst = flat[outside]
            made.label_range = (float(worst.min()), float(worst.max())) if len(worst) else (None, None)
    is_token = made.role == "token" or (made.role == "feature" and block.kind == "int")
    if options.vocab is not None and is_token and block.kind != "image":
        _hit(made, "token_out_of_range", (low < 0) | (high >= options.vocab), block)
    if is_label and not (rows.width == 1 and (block.shape == () or block.table)):
        _hit(made, "all_labels_ignored", (low == _IGNORED) & (high == _IGNORED) & (rows.widths > 0), block)


def _empty_mask(block: Block, name: str) -> Array:
    """Samples whose mask lets nothing through; for an attention mask of rank 3 and more, in any of its rows."""
    rows = block.rows
    flat = rows.flat
    inverted = is_inverted_mask(name)
    additive = block.kind == "float" and bool((flat <= MASKED).any())
    valid = (flat == 0) if inverted else (flat != 0)
    if additive:
        valid = flat > MASKED
    shape = block.shape
    if shape is not None and len(shape) >= 2 and shape[-1] == shape[-2] and "att" in name.lower():
        return np.asarray(~valid.reshape(rows.count, -1, shape[-1]).any(axis=2).all(axis=1))
    return ~rows.any(valid) & (rows.widths > 0)


def _ctc_needs(rows: Rows) -> Array:
    """Number of labels plus number of neighbours that are equal, for each sample."""
    starts = rows.bounds[:-1]
    repeats = np.zeros(len(rows.flat) + 1, dtype=np.int64)
    same = rows.flat[1:] == rows.flat[:-1]
    same[starts[(starts > 0) & (starts < len(rows.flat))] - 1] = False  # neighbours in different samples
    np.cumsum(same, out=repeats[2:])
    return np.asarray(rows.widths + repeats[rows.bounds[1:]] - repeats[starts], dtype=np.float64)


def _compares(kind: str, role: FieldRole, rows: Rows) -> bool:
    """Whether two samples of the field with equal values are a copy worth reporting."""
    if role in ("mask", "label", "target", "input_length", "target_length", "constant"):
        return False
    if kind not in ("float", "half", "bfloat16", "image", "int"):
        return False
    if rows.starts is None and rows.width < _SHORT:
        return False
    if kind == "int" and role != "token":  # a mask without a name is no sequence of ids
        return role == "feature" and bool(((rows.flat < 0) | (rows.flat > 1)).any())
    return True


def _is_one_image(block: Block) -> bool:
    """A file with a single picture: its channels are not samples, and a grey picture has three equal ones."""
    return block.shape is not None and len(block.shape) == 2 and int(block.rows.count) <= 4


def _looks_like_image(block: Block, name: str) -> bool:
    """A name or a shape of an image: height and width, with or without 1, 3 or 4 channels."""
    role_excluded = role_of(name, DataOptions()) in ("mask", "label", "target")
    shape = block.shape if block.shape is not None else (block.shapes[0] if block.shapes else ())
    sizes = [size for size in shape if isinstance(size, int)]
    if role_excluded or len(sizes) != len(shape):
        return False
    if is_image_name(name):
        return True
    if len(sizes) == 2:
        return min(sizes) >= 8
    if len(sizes) == 3:
        return (sizes[0] in (1, 3, 4) and min(sizes[1:]) >= 4) or (sizes[2] in (1, 3, 4) and min(sizes[:2]) >= 4)
    return False


def _hit(made: Measures, slug: str, flags: Array, block: Block) -> None:
    if flags.any():
        made.hits[slug] = block.indices[np.flatnonzero(flags)]


def _note_shapes(made: Measures, block: Block) -> None:
    """Group the samples by what must agree between them."""
    if block.shape is not None:
        made.shapes[agreeing_shape(block.shape, block.kind)] = block.indices
        return
    if not block.shapes:
        return
    groups: dict[SampleShape, list[int]] = {}
    indices = block.indices if len(block.indices) else block.foreign
    for index, shape in zip(indices.tolist(), block.shapes, strict=True):
        groups.setdefault(agreeing_shape(shape, block.kind), []).append(index)
    made.shapes = {shape: np.array(found, dtype=np.int64) for shape, found in groups.items()}


def agreeing_shape(shape: tuple[object, ...], kind: str) -> SampleShape:
    """The part of a sample's shape that must be the same everywhere.

    Images may differ in size, not in channels. A sequence may be shorter or longer if it holds ids or vectors; a
    plain vector of floats may not.
    """
    if any(not isinstance(size, int) for size in shape):
        return shape
    if len(shape) == 3 and kind in ("float", "half", "bfloat16", "image"):
        if shape[0] in (1, 3, 4) and shape[2] not in (1, 3, 4):
            return ("channels first", shape[0])
        if shape[2] in (1, 3, 4):
            return ("channels last", shape[2])
    if kind == "image" and len(shape) == 2:
        return ("channels", 1)
    if len(shape) == 1 and kind in ("float", "half", "bfloat16"):
        return (1, *shape)
    return (len(shape), *shape[1:])
