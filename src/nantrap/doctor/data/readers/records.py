"""Columns of Python values, as JSON, tar members and datasets give them, turned into blocks.

A value is a number, a list (nested, possibly ragged), an array, a text or nothing. Numbers of one column become one
flat array; what is not a number is noted by its index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nantrap.doctor.data.measures import Measures, measure
from nantrap.doctor.data.readers.arrays import kind_of, native
from nantrap.doctor.data.roles import DataOptions
from nantrap.doctor.data.rows import NOT_A_NUMBER, Array, Block, Rows, text_block

DEEPEST = 4
"""How many objects inside of objects a field may come from."""


def measure_records(
    batch: list[tuple[int, Any]], options: DataOptions, parts: dict[str | None, list[Measures]], stem: str = ""
) -> None:
    """Measure records (dicts, lists or single values), column by column."""
    columns: dict[str | None, list[tuple[int, Any]]] = {}
    for index, record in batch:
        for name, value in _flat(None, record, 0):
            columns.setdefault(name, []).append((index, value))
    for name, values in columns.items():
        for block in blocks_of_column(name, values, table=True):
            parts.setdefault(name, []).append(measure(block, options, file_stem=stem))


def blocks_of_column(name: str | None, values: Sequence[tuple[int, Any]], *, table: bool) -> list[Block]:
    """The blocks of one column: numbers, and separately what is missing or text.

    Args:
        name: of the column.
        values: sample index and value, in order.
        table: whether a single number per row may be anything (a feature, a count, an id).
    """
    missing = [index for index, value in values if value is None]
    texts = [index for index, value in values if isinstance(value, str)]
    arrays = [(index, _as_array(value)) for index, value in values if value is not None and not isinstance(value, str)]
    arrays, other = [pair for pair in arrays if pair[1] is not None], [index for index, made in arrays if made is None]
    absent, strange = np.array(missing, dtype=np.int64), np.array(sorted(texts + other), dtype=np.int64)
    if not arrays:
        return [text_block(name, missing=absent, foreign=strange, table=table)]
    blocks = _grouped(name, arrays, table=table)
    blank = Rows(blocks[0].rows.flat[:0], 0, 0)
    if missing:
        blocks.append(Block(name, blocks[0].kind, blank, absent[:0], table=table, missing=absent))
    if len(strange):
        shapes = ((NOT_A_NUMBER,),) * len(strange)
        blocks.append(Block(name, blocks[0].kind, blank, strange[:0], shapes=shapes, table=table, foreign=strange))
    return blocks


def _grouped(name: str | None, arrays: list[tuple[int, Any]], *, table: bool) -> list[Block]:
    """One block of all arrays, in their common type; scalars are one column."""
    made = [array for _, (array, _) in arrays]
    indices = np.array([index for index, _ in arrays], dtype=np.int64)
    shapes = tuple(shape for _, (_, shape) in arrays)
    same = len(set(shapes)) == 1
    flat = np.concatenate([np.atleast_1d(array).reshape(-1) for array in made])
    flat = native(flat[:, None]).reshape(-1) if flat.dtype.kind == "c" else native(flat)
    sample = tuple(size for size in shapes[0] if isinstance(size, int))
    used, kind = kind_of(flat.dtype, sample)
    if kind == "other":
        return [text_block(name, missing=indices[:0], foreign=indices, table=table)]
    factor = 2 if made[0].dtype.kind == "c" else 1
    lengths = np.array([array.size * factor for array in made], dtype=np.int64)
    rows = Rows.of_lists(flat.view(used) if kind == "half" else flat, lengths)
    scalars = same and shapes[0] == ()
    return [
        Block(
            name,
            kind,
            rows,
            indices,
            shape=sample if same and len(sample) == len(shapes[0]) else None,
            shapes=() if same and len(sample) == len(shapes[0]) else shapes,
            table=table and scalars,
        )
    ]


def _as_array(value: Any) -> tuple[Array, tuple[object, ...]] | None:
    """The value as an array with its shape; `None` if it holds anything but numbers."""
    if isinstance(value, np.ndarray):
        return (value, value.shape) if value.dtype.kind in "fiubc" else None
    if isinstance(value, (bool, int, float, complex, np.generic)):
        try:
            array = np.asarray(value)
        except OverflowError:
            return None
        if array.dtype.kind not in "fiubc":  # an integer beyond 64 bits
            array = np.asarray(float(value)) if isinstance(value, int) else array
        return (array, ()) if array.dtype.kind in "fiubc" else None
    if isinstance(value, (list, tuple)):
        return _of_list(value)
    return None


def _of_list(value: Sequence[Any]) -> tuple[Array, tuple[object, ...]] | None:
    """A nested list. A ragged one keeps its numbers, and its shape says so; null inside becomes NaN."""
    if not len(value):
        return np.empty(0, dtype=np.int64), (0,)
    try:
        array = np.array(value)
    except ValueError:
        array = np.array(value, dtype=object)
    if array.dtype.kind in "fiubc":
        return array, array.shape
    numbers: list[Any] = []
    if not _flatten(value, numbers):
        return None
    ragged = any(isinstance(item, (list, tuple)) for item in value)
    shape: tuple[object, ...] = (len(value), "ragged") if ragged and array.ndim < 2 else array.shape
    return np.array(numbers, dtype=np.float64 if any(isinstance(n, float) for n in numbers) else np.int64), shape


def _flatten(value: Any, numbers: list[Any]) -> bool:
    """Append all numbers of a nested list; false if it holds anything else."""
    if isinstance(value, (list, tuple)):
        return all(_flatten(item, numbers) for item in value)
    if value is None:
        numbers.append(float("nan"))
        return True
    if isinstance(value, (bool, int, float)):
        numbers.append(value)
        return True
    return False


def _flat(name: str | None, value: Any, depth: int) -> Iterator[tuple[str | None, Any]]:
    if isinstance(value, dict) and depth < DEEPEST:
        for key, inner in value.items():
            yield from _flat(str(key) if name is None else f"{name}.{key}", inner, depth + 1)
    elif not isinstance(value, dict):
        yield name, value if not isinstance(value, np.generic) else value.item()
