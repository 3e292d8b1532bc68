"""NT162 for files of arrays: padded targets with their lengths, or concatenated ones, against the input lengths.

PyTorch's `ctc_loss` is infinite where the target, plus one blank between each pair of equal neighbours, is longer
than the input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from nantrap.doctor.data.measures import Measures
from nantrap.doctor.data.rows import Array

_PADDING = (0, -1, -100)

Read = Callable[[str | None], Array | None]


def infeasible_samples(
    fields: Mapping[str | None, Measures], shapes: Mapping[str | None, tuple[int, ...]], read: Read
) -> tuple[str | None, list[int]] | None:
    """The field of the targets and the samples that cannot be aligned; `None` if the file is not about CTC.

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
