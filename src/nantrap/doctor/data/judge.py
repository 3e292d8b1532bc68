"""From measures to findings: every rule of the data check, one function each, in the order of their codes.

A rule sees all measures of a field together. Rules that compare fields (lengths, CTC) see all fields of a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from nantrap.doctor.data.findings import DataFinding, data_finding, listed
from nantrap.doctor.data.measures import Measures
from nantrap.doctor.data.roles import DataOptions
from nantrap.doctor.data.rows import NOT_A_NUMBER, OTHER_WIDTH, Array, Indices
from nantrap.incident.wording import counted

_FLOATS = ("float", "half", "bfloat16")
_PADDING = (0, -1, -100)
_OUTLIER = 50.0
_FEW = 16
_MOSTLY = 0.9
"""A column in which nine of ten filled cells are numbers is a numeric column."""

_Found = tuple[str, Array, str]
"""A rule, the samples, and the words that follow their number."""
Confirm = Callable[[Measures, Indices], Array]
"""Digests of whole samples, for samples whose cheap marks are equal."""


def judge_file(
    file: str, fields: Mapping[str | None, Measures], options: DataOptions, confirm: Confirm
) -> list[DataFinding]:
    """All findings of one file.

    Args:
        file: its path.
        fields: its measures by field name.
        options: what the user gave about the data.
        confirm: reads samples again to compare them in full.
    """
    numeric = {name: made for name, made in fields.items() if _is_numeric(made)}
    candidates = {
        "label_out_of_range": _candidates(numeric, "label", options),
        "token_out_of_range": _candidates(numeric, "token", options),
    }
    findings: list[DataFinding] = []
    for name, made in numeric.items():
        for slug, indices, words in _found(made, options, candidates, confirm):
            count, text = len(indices), f"{_samples(len(indices))} {words}: {listed(indices.tolist())}"
            if slug == "constant_field":
                count = made.rows - made.missing
                text = f"every value of {_samples(count)} is {words}"
            findings.append(data_finding(slug, file, name, tuple(indices.tolist()), count, text))
    findings += _ctc(file, fields)
    return sorted(findings, key=lambda finding: (finding.code, str(finding.field)))


def _found(
    made: Measures, options: DataOptions, candidates: Mapping[str, set[str | None]], confirm: Confirm
) -> Iterator[_Found]:
    """What every rule finds in one field."""
    yield from _non_finite(made)
    yield from _overflows_half(made)
    yield from _outlier(made)
    yield from _constant(made)
    yield from _duplicates(made, confirm)
    yield from _mismatched_samples(made)
    for slug, names in candidates.items():
        if made.field in names:
            yield from _outside(made, slug, options)
    yield from _masks_and_labels(made)
    yield from _scale(made)


def _is_numeric(made: Measures) -> bool:
    """Text is not judged, and a column of mostly text is a text column."""
    if made.kind in ("text", "other"):
        return False
    filled = made.rows - made.missing
    return filled > 0 and filled - len(made.found("foreign")) >= _MOSTLY * filled


def _candidates(fields: Mapping[str | None, Measures], role: str, options: DataOptions) -> set[str | None]:
    """The fields of this role; if none is named so, the only field of whole numbers that could be it."""
    named = {name for name, made in fields.items() if made.role == role}
    if named or (role == "label" and options.labels is not None):
        return named
    whole = [name for name, made in fields.items() if made.role == "feature" and made.kind == "int"]
    if role == "label":
        whole = [name for name in whole if fields[name].least_width == 1]
        numbers = [name for name, made in fields.items() if made.table and made.role == "feature"]
        if len(numbers) > 1:  # a column of whole numbers next to others may be a count or a label
            whole = [name for name in whole if not fields[name].table]
    else:
        whole = [name for name in whole if not fields[name].table]
        whole = [name for name in whole if fields[name].least_width != 1] or whole
    return set(whole) if len(whole) == 1 else set()


def _non_finite(made: Measures) -> Iterator[_Found]:
    """NT151."""
    parts = [made.found("non_finite")]
    words = []
    if made.nan + made.nan_cells:
        words.append(f"{made.nan + made.nan_cells:,} NaN")
    if made.infinite:
        words.append(f"{made.infinite:,} Inf")
    if len(made.found("missing")):
        parts.append(made.found("missing"))
        absent = len(made.found("missing")) - made.nan_cells
        words += [counted(absent, "missing value")] if absent else []
    if len(made.found("foreign")) and (NOT_A_NUMBER,) not in made.shapes:  # else it is a matter of shape
        parts.append(made.found("foreign"))
        words.append(f"{len(made.found('foreign')):,} not a number")
    indices = np.unique(np.concatenate(parts))
    if len(indices):
        yield "non_finite", indices, f"with {', '.join(words)}"


def _is_quantity(made: Measures) -> bool:
    """Floats, and whole numbers in table columns: in arrays those are ids, labels or pixels."""
    known = made.kind in _FLOATS or (made.table and made.kind == "int" and made.role == "feature")
    return known and made.role not in ("mask", "identifier", "token")


def _overflows_half(made: Measures) -> Iterator[_Found]:
    """NT152. Ids and masks are never cast to float16."""
    indices = made.found("overflows_half")
    if _is_quantity(made) and len(indices):
        yield "overflows_half", indices, "beyond 65,504"


def _outlier(made: Measures) -> Iterator[_Found]:
    """NT153."""
    if not _is_quantity(made) or made.peaks is None or made.role in ("constant", "input_length", "target_length"):
        return
    known = made.peaks[np.isfinite(made.peaks)]
    median = float(np.median(known.astype(np.float64, copy=False))) if len(known) else 0.0
    if median <= 0:  # most samples are zero: any other value is infinitely larger, and means nothing
        return
    tops = made.peaks if made.tops is None else made.tops
    with np.errstate(invalid="ignore"):
        high = tops.astype(np.float64) > _OUTLIER * median
        indices = np.sort(made.at(np.flatnonzero(high)) if made.tops_at is None else made.tops_at[high])
    if len(indices):
        yield "outlier", indices, f"up to {float(np.nanmax(tops)):.3g}, the median of all is {median:.3g}"


def _constant(made: Measures) -> Iterator[_Found]:
    """NT154 and NT155."""
    indices = made.found("constant_sample")
    if len(indices) and made.role not in ("mask", "label", "target") and len(indices) * 10 < made.rows:
        yield "constant_sample", indices, "of one value only"
    filled = made.rows - made.missing
    exempt = made.role in ("mask", "input_length", "target_length", "constant")
    one_value = made.low is not None and made.low == made.high and not len(made.found("non_finite"))
    if one_value and filled >= _FEW and not exempt and not len(made.found("foreign")):
        yield "constant_field", np.empty(0, dtype=np.int64), f"{made.low:g}"


def _duplicates(made: Measures, confirm: Confirm) -> Iterator[_Found]:
    """NT156: the later copies. Samples without any finite value are not compared."""
    if made.marks is None:
        return
    marks = made.marks
    entries = np.arange(len(marks))
    if made.peaks is not None and len(made.peaks) == len(marks):
        entries = entries[np.isfinite(made.peaks)]
    if not made.exact:
        entries = entries[_repeated(marks[entries])]
        if not len(entries):
            return
        marks = marks.copy()
        marks[entries] = confirm(made, made.at(entries))
    _, first = np.unique(marks[entries], return_index=True)
    later = np.delete(entries, first)
    if len(later):
        yield "duplicate_sample", np.sort(made.at(later)), "repeated"


def _repeated(marks: Array) -> Array:
    """Where a value is that also occurs elsewhere."""
    order = np.argsort(marks, kind="stable")
    ordered = marks[order]
    same = ordered[1:] == ordered[:-1]
    return np.sort(order[np.concatenate([[False], same]) | np.concatenate([same, [False]])])


def _mismatched_samples(made: Measures) -> Iterator[_Found]:
    """NT157, between the samples of one field."""
    shapes = {shape: found for shape, found in made.shapes.items() if len(found)}
    usual = max(shapes, key=lambda shape: len(shapes[shape]), default=())
    others = {shape: found for shape, found in shapes.items() if shape != usual}
    if not others or usual == (OTHER_WIDTH,) or len(shapes[usual]) <= sum(map(len, others.values())):
        return  # no shape is usual: sequences of different length
    indices = np.sort(np.concatenate(list(others.values())))
    first = min(others, key=lambda shape: int(others[shape][0]))
    if first == (OTHER_WIDTH,):
        yield "shape_mismatch", indices, f"with {OTHER_WIDTH} (most have {usual[-1]})"
    else:
        yield "shape_mismatch", indices, f"of another shape ({_shape(first)}, most are {_shape(usual)})"


def _shape(shape: tuple[object, ...]) -> str:
    """The agreeing part of a shape in words."""
    rank, *sizes = shape or (0,)
    if "ragged" in shape:
        return "lists of different lengths"
    if not isinstance(rank, int):
        return " ".join(str(part) for part in (*sizes, rank))  # 3 channels first
    if rank == 0:
        return "a single number"
    # The first size is left out where samples may be shorter or longer.
    return "×".join(map(str, sizes if len(sizes) == rank else ["n", *sizes]))


def _outside(made: Measures, slug: str, options: DataOptions) -> Iterator[_Found]:
    """NT158 and NT159."""
    indices = made.found(slug)
    if not len(indices):
        return
    limit = options.classes if slug == "label_out_of_range" else options.vocab
    assert limit is not None
    low, high = made.label_range if slug == "label_out_of_range" else (made.low, made.high)
    assert low is not None
    assert high is not None
    if low < 0 and high >= limit:
        worst = f"from {low:,.15g} to {high:,.15g}"
    else:
        worst = f"down to {low:,.15g}" if low < 0 else f"up to {high:,.15g}"
    yield slug, indices, f"outside 0..{limit - 1:,} ({worst})"


def _masks_and_labels(made: Measures) -> Iterator[_Found]:
    """NT160 and NT161."""
    for slug, role, words in (
        ("empty_mask", "mask", "with nothing valid"),
        ("all_labels_ignored", "label", "with every label -100"),
    ):
        if made.role == role and len(made.found(slug)):
            yield slug, made.found(slug), words


def _scale(made: Measures) -> Iterator[_Found]:
    """NT163: the field as a whole must stay within 0..255, or it is some other quantity."""
    indices = made.found("scale_suspect")
    if not len(indices) or made.high is None or made.low is None or made.role in ("mask", "label", "target"):
        return
    if made.low >= 0 and 128 <= made.high <= 255:
        yield "scale_suspect", indices, f"of whole numbers up to {made.high:g}: pixels that were not divided by 255"


def different_lengths(file: str, fields: Mapping[str | None, Measures]) -> list[DataFinding]:
    """NT157, between the fields of one group of a file.

    Fields whose lengths nearly all differ are not columns of one dataset but samples, each under its own key.
    """
    groups: dict[str, dict[str, int]] = {}
    totals = {int(made.numbers.sum()) for made in fields.values() if made.numbers is not None}
    for name, made in fields.items():
        length = made.rows
        if length in totals:  # sequences one after the other, with their lengths in another field
            continue
        if name is None or made.role == "constant" or length <= 1 or made.kind == "other":
            continue
        groups.setdefault(name.rpartition("/" if "/" in name else ".")[0], {})[name] = length
    findings = []
    for group in groups.values():
        counted = Counter(group.values())
        if len(counted) < 2 or (len(counted) > 2 and max(counted.values()) * 2 <= len(group)):
            continue
        usual = max(counted, key=lambda length: (counted[length], length))
        for name, length in group.items():
            if length != usual:
                alone = tuple(range(min(length, usual), max(length, usual)))
                text = f"{length:,} samples, but {_other(group, name)} {usual:,}"
                findings.append(data_finding("shape_mismatch", file, name, alone, len(alone), text))
    return findings


def missing_in_samples(
    file: str, fields: Mapping[str | None, Measures], samples: int, unread: Mapping[str | None, set[int]]
) -> list[DataFinding]:
    """NT157, where a sample is a set of members with one name: those that lack a member most samples have.

    Args:
        file: the archive.
        fields: the measures of its fields.
        samples: how many samples it has.
        unread: members that are there but could not be read, by field.
    """
    findings = []
    for name, made in fields.items():
        if samples / 2 < made.rows < samples:
            parts = [made.at(np.arange(made.entries)), made.found("missing"), made.found("foreign")]
            parts.append(np.array(sorted(unread.get(name, ())), dtype=np.int64))
            indices = np.setdiff1d(np.arange(samples), np.concatenate(parts))
            if not len(indices):
                continue
            text = f"{_samples(len(indices))} without {name}: {listed(indices.tolist())}"
            findings.append(data_finding("shape_mismatch", file, name, tuple(indices.tolist()), len(indices), text))
    return findings


def _other(group: Mapping[str, int], name: str) -> str:
    others = [other for other in group if other != name]
    return f"{others[0]} has" if len(others) == 1 else "the other fields have"


def _ctc(file: str, fields: Mapping[str | None, Measures]) -> list[DataFinding]:
    """NT162, where lengths and labels are read sample by sample; `infeasible_samples` does it for arrays."""
    inputs = [made for made in fields.values() if made.role == "input_length" and made.numbers is not None]
    if len(inputs) != 1:
        return []
    given = inputs[0]
    assert given.numbers is not None
    sizes = dict(zip(given.at(np.arange(len(given.numbers))).tolist(), given.numbers.tolist(), strict=True))
    needs: dict[int, float] = {}
    field = given.field
    for made in sorted(fields.values(), key=lambda made: made.role, reverse=True):  # the labels after their lengths
        counted = made.numbers if made.role == "target_length" else made.needs if made.role == "label" else None
        if counted is None:
            continue
        field = made.field
        for index, need in zip(made.at(np.arange(len(counted))).tolist(), counted.tolist(), strict=True):
            needs[index] = max(needs.get(index, 0.0), need)
    short = sorted(index for index, need in needs.items() if index in sizes and need > sizes[index])
    if not short:
        return []
    return [ctc_finding(file, field, short)]


def ctc_finding(file: str, field: str | None, indices: Sequence[int]) -> DataFinding:
    """NT162 in words."""
    text = f"{_samples(len(indices))} whose target, with its repeats, is longer than the input: {listed(indices)}"
    return data_finding("ctc_infeasible", file, field, tuple(indices), len(indices), text)


def _samples(count: int) -> str:
    return counted(count, "sample")


def infeasible_samples(
    fields: Mapping[str | None, Measures],
    shapes: Mapping[str | None, tuple[int, ...]],
    read: Callable[[str | None], Array | None],
) -> tuple[str | None, list[int]] | None:
    """NT162 for files of arrays: padded targets with their lengths, or concatenated ones, against the input lengths.

    PyTorch's `ctc_loss` is infinite where the target, plus one blank between each pair of equal neighbours, is longer
    than the input. Gives the field of the targets and the samples that cannot be aligned; `None` if the file is not
    about CTC.

    Args:
        fields: the measures of the file's fields.
        shapes: the shape of each field's samples.
        read: gives a whole field.
    """
    lengths = [made for made in fields.values() if made.role == "input_length" and made.numbers is not None]
    target_lengths = [made for made in fields.values() if made.role == "target_length" and made.numbers is not None]
    targets = [name for name, made in fields.items() if made.role in ("label", "target") and made.kind == "int"]
    if len(lengths) == 1:
        given = lengths[0].numbers
    else:
        inputs = [n for n, made in fields.items() if made.kind == "float" and len(shapes.get(n, ())) >= 2]
        if lengths or len(inputs) != 1 or not target_lengths:
            return None
        given = np.full(fields[inputs[0]].rows, float(shapes[inputs[0]][0]))
    assert given is not None
    counts = target_lengths[0].numbers if len(target_lengths) == 1 else None
    labels = read(targets[0]) if len(targets) == 1 else None
    needs = _needs(labels, counts, len(given))
    if needs is None:
        return None
    size = min(len(needs), len(given))
    name = targets[0] if labels is not None else target_lengths[0].field
    return name, np.flatnonzero(needs[:size] > given[:size]).tolist()


def _needs(labels: Array | None, counts: Array | None, samples: int) -> Array | None:
    """Labels plus equal neighbours of each sample."""
    if labels is None:
        return counts
    if labels.ndim == 1 and counts is not None and len(labels) == int(counts.sum()) and len(labels) != samples:
        ends = np.cumsum(counts).astype(np.int64)
        rows = [labels[end - int(count) : end] for end, count in zip(ends, counts, strict=True)]
    elif labels.ndim == 2 and len(labels) == samples:
        if counts is not None:
            rows = [row[: int(count)] for row, count in zip(labels, counts, strict=False)]
        else:
            rows = [_without_padding(row) for row in labels]
    else:
        return counts
    needs = np.array([len(row) + int((row[1:] == row[:-1]).sum()) for row in rows], dtype=np.float64)
    return needs if counts is None else np.maximum(needs, counts[: len(needs)])


def _without_padding(row: Array) -> Array:
    """The row up to its last label: blank, -1 and -100 fill it up."""
    filled = np.flatnonzero(~np.isin(row, _PADDING))
    return row[: int(filled[-1]) + 1] if len(filled) else row[:0]
