"""CSV and TSV. A column is numeric if nearly all of its filled cells are numbers; its empty cells are then missing.

Rows are counted without the header and without blank lines. A first row that holds a number is no header.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from nantrap.doctor.data.measure import measure
from nantrap.doctor.data.measures import Block, Measures, joined
from nantrap.doctor.data.roles import DataOptions
from nantrap.doctor.data.rows import Rows
from nantrap.doctor.data.shards import Plan, Problem, Scanned, Shard, UnreadableDataError
from nantrap.doctor.data.stored import as_stream, open_source

_ROWS = 20_000
_EMPTY = frozenset((
    "", "#n/a", "#na", "-1.#ind", "-1.#qnan", "1.#ind", "1.#qnan", "<na>", "n/a", "na", "null", "none", "#div/0!",
    "#num!", "#value!", "nan", "-nan", "?",
))  # fmt: skip
ROW = "\0row"
"""The name of the measures that stand for whole rows. No column can be called so."""


def plan(path: str, format: str) -> Plan:
    """One shard: where rows begin is known only after what is before them."""
    with open_source(path) as source:
        if source.size == 0:
            raise UnreadableDataError("the file is empty")
        if b"\0" in source.read(0, 4096):
            raise UnreadableDataError("not text: it holds zero bytes")
        return Plan((Shard(path, format, bytes=source.size),))


def scan(shard: Shard, options: DataOptions) -> Scanned:
    """Measure all columns, and whole rows for copies."""
    made = Scanned()
    parts: dict[str, list[Measures]] = {}
    widths: list[int] = []
    with open_source(shard.path) as source:
        try:
            with as_stream(source) as stream:
                reader = _reader(stream, shard.path)
                names, rest = _header(reader)
                if not names:
                    raise UnreadableDataError("the file holds no row")
                for first, rows in _batches(rest):
                    _measure_batch(names, first, rows, options, parts, widths)
                    made.samples += len(rows)
        except (csv.Error, UnicodeError) as error:
            made.problems.append(Problem(f"not readable as CSV from row {made.samples:,} on: {error}"))
        if source.changed():
            made.problems.append(Problem("changed while it was read; check it again when nothing writes to it"))
    for name, found in parts.items():
        made.measures.append(joined(found))
        if name == ROW and widths:
            made.measures[-1].shapes = {
                (1, len(names)): np.setdiff1d(np.arange(made.samples), np.array(widths)),
                ("another number of cells",): np.array(widths, dtype=np.int64),
            }
    return made


def _reader(stream: Any, path: str) -> Iterator[list[str]]:
    head = stream.read(64 << 10)
    stream.seek(0)
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    line = head.decode(encoding, errors="replace").partition("\n")[0]
    delimiter = "\t" if path.lower().endswith((".tsv", ".tab")) else max(",;\t|", key=line.count)
    text = io.TextIOWrapper(stream, encoding=encoding, errors="surrogateescape", newline="")
    csv.field_size_limit(1 << 27)
    return (row for row in csv.reader(text, delimiter=delimiter, skipinitialspace=True) if row)


def _header(reader: Iterator[list[str]]) -> tuple[list[str], Iterator[list[str]]]:
    """The names of the columns, and the rows."""
    first = next(reader, None)
    if first is None:
        return [], reader
    numbers = [cell for cell in first if _number(cell) is not None]
    counted = [cell for cell in first if cell.strip()] == [str(i) for i in range(len(numbers))] and len(numbers) > 1
    if numbers and not counted:
        return [str(position) for position in range(len(first))], itertools.chain([first], reader)
    seen: dict[str, int] = {}
    names = []
    for position, cell in enumerate(first):
        name = cell.strip() or str(position)
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}.{seen[name] - 1}")
    return names, reader


def _batches(rows: Iterator[list[str]]) -> Iterator[tuple[int, list[list[str]]]]:
    first = 0
    while batch := list(itertools.islice(rows, _ROWS)):
        yield first, batch
        first += len(batch)


def _measure_batch(
    names: list[str],
    first: int,
    rows: list[list[str]],
    options: DataOptions,
    parts: dict[str, list[Measures]],
    widths: list[int],
) -> None:
    for offset, row in enumerate(rows):
        if len(row) != len(names):
            widths.append(first + offset)
    indices = np.arange(first, first + len(rows))
    for position, name in enumerate(names):
        cells = [row[position] if position < len(row) else None for row in rows]
        block = _column(name, cells, indices)
        parts.setdefault(name, []).append(measure(block, options, file_stem=""))
    marks = np.array([_digest(row) for row in rows], dtype=np.uint64)
    whole = Measures(ROW, "identifier", "int", rows=len(rows), entries=len(rows), marks=marks, start=first)
    parts.setdefault(ROW, []).append(whole)


def _digest(row: list[str]) -> int:
    data = "\x1f".join(row).encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _column(name: str, cells: list[str | None], indices: Any) -> Block:
    """One column of one batch: its numbers, its empty cells, its text."""
    values = np.full(len(cells), np.nan)
    try:
        values = np.array(cells, dtype=np.float64) if None not in cells else values
        missing: list[int] = np.flatnonzero(np.isnan(values)).tolist() if None not in cells else []
        foreign: list[int] = []
        done = None not in cells
    except (ValueError, TypeError):
        done = False
    if not done:
        missing, foreign = [], []
        for position, cell in enumerate(cells):
            if cell is None:
                continue  # the row is too short, which is reported as such
            number = _number(cell)
            if number is not None:
                values[position] = number
            elif cell.strip().lower() in _EMPTY:
                missing.append(position)
            else:
                foreign.append(position)
    filled = np.flatnonzero(~np.isnan(values))
    if not len(filled):
        rows = Rows(np.empty(0), 0, 0)
        empty, strange = indices[missing], indices[foreign]
        return Block(name, "text", rows, indices[:0], table=True, missing=empty, foreign=strange)
    whole = all("." not in cells[i] and "e" not in cells[i].lower() for i in filled[:64])
    numbers = values[filled]
    is_whole = whole and bool(np.isfinite(numbers).all()) and bool((numbers == np.trunc(numbers)).all())
    # The block holds the numbers only; the indices of the others are handed over beside them.
    return Block(
        name,
        "int" if is_whole else "float",
        Rows(numbers, len(numbers), 1),
        indices[filled],
        shape=(),
        table=True,
        missing=indices[missing],
        foreign=indices[foreign],
    )


def _number(cell: str) -> float | None:
    """The number in a cell; NaN counts as none, so that it is treated like an empty cell."""
    text = cell.strip()
    if not text or text[-1] not in "0123456789.fFyY":  # inf, infinity
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number == number else None
