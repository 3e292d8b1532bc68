"""CSV and TSV. A column is numeric if nearly all of its filled cells are numbers; its empty cells are then missing.

Rows are counted without the header and without blank lines. A first row that holds a number is no header. A piece
without quotes is parsed as a whole by pyarrow where it is installed, which uses every core; anything unusual (quotes,
rows of another width, other encodings) goes through the standard library, cell by cell.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nantrap.doctor.data.limits import MOST_FIELDS
from nantrap.doctor.data.measures import Measures, joined, measure
from nantrap.doctor.data.readers.arrow_files import csv_table
from nantrap.doctor.data.readers.text_pieces import MOST_UTF16, PIECE, line_bounds, read_piece, whole_of
from nantrap.doctor.data.roles import DataOptions
from nantrap.doctor.data.rows import OTHER_WIDTH, Array, Block, Rows, line_digests, text_block
from nantrap.doctor.data.shards import CHANGED, DataProblem, Scanned, Shard, UnreadableDataError
from nantrap.doctor.data.stored import open_source

_ROWS = 20_000
_HEAD = 1 << 20
_EMPTY = frozenset((
    "", "#n/a", "#na", "-1.#ind", "-1.#qnan", "1.#ind", "1.#qnan", "<na>", "n/a", "na", "null", "none", "#div/0!",
    "#num!", "#value!", "nan", "-nan", "?",
))  # fmt: skip
_NAN = frozenset(text for text in _EMPTY if "nan" in text or "#ind" in text)
_MAY_SAY_NAN = re.compile(rb"nan|#ind", re.IGNORECASE)
_EMPTY_SPELLINGS = sorted(
    {spelt for text in _EMPTY for spelt in (text, text.upper(), text.capitalize(), "NaN", "-NaN")}
)
ROW = "\0row"
"""The name of the measures of whole rows. No column can have this name."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a file is to be read, found from its first bytes."""

    names: list[str]
    has_header: bool
    delimiter: str
    encoding: str


def scan(shard: Shard, options: DataOptions) -> Scanned:
    """Measure all columns of a piece, and whole rows for copies."""
    with open_source(shard.path) as source:
        layout = _layout(source.read(0, _HEAD), shard.path, whole=source.size <= _HEAD)
        data, whole = read_piece(source, shard)
    made = _scan_table(data, layout, options, first=not shard.begin)
    if made is None:
        made = _scan_rows(data, layout, options, first=not shard.begin)
    made.open_quote = layout.encoding != "utf-16" and data.count(b'"') % 2 == 1
    if not whole:
        made.problems.append(DataProblem(CHANGED))
    return made


def combine(path: str, pieces: Sequence[Scanned], options: DataOptions) -> Scanned:
    """The pieces of one file, counted through the whole file."""
    unclosed = [number for number, piece in enumerate(pieces[:-1]) if piece.open_quote]
    with open_source(path) as source:
        size = source.size
    if unclosed and size > MOST_UTF16:
        text = (
            f"a quote in piece {unclosed[0]:,} of {PIECE:,} bytes is not closed: rows after it may not be counted right"
        )
        pieces[unclosed[0]].problems.append(DataProblem(text))
    elif unclosed:  # a cell with line ends in it was cut: read it in one piece
        pieces = [scan(Shard(path, "csv", begin=0, end=size, bytes=size), options)]
    stopped = next((number for number, piece in enumerate(pieces) if piece.stopped), None)
    if stopped is not None:
        pieces = pieces[: stopped + 1]
    made = whole_of(pieces)
    if stopped is not None:
        why = pieces[stopped].stopped
        made.problems.append(DataProblem(f"not readable as CSV from row {made.samples:,} on: {why}"))
    _complete_widths([each for each in made.measures if each.field == ROW])
    return made


def _complete_widths(rows: list[Measures]) -> None:
    """Where some rows have another number of cells, the others have the usual one, also in pieces without such rows."""
    usual = next((shape for made in rows for shape in made.shapes if shape != (OTHER_WIDTH,)), None)
    if usual is not None:
        for made in rows:
            made.shapes = made.shapes or {usual: np.arange(made.start, made.start + made.rows)}


def _layout(head: bytes, path: str, *, whole: bool) -> _Layout:
    """Encoding, delimiter and column names of a CSV file, by its beginning."""
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    if encoding == "utf-16" and len(head) % 2:
        head = head[:-1]
    text = head.decode(encoding, errors="replace")
    line = text.partition("\n")[0]
    delimiter = "\t" if path.lower().endswith((".tsv", ".tab")) else max(",;\t|", key=line.count)
    if not whole and "\n" in text:
        text = text[: text.rindex("\n") + 1]
    try:
        first = next(_reader(text, delimiter), None)
    except csv.Error as error:
        raise UnreadableDataError(f"not readable as CSV: {error}") from error
    if first is None:
        raise UnreadableDataError("the file holds no row")
    if not whole and "\n" not in text:
        raise UnreadableDataError(f"not read: its first line is longer than {_HEAD:,} bytes")
    if len(first) > MOST_FIELDS:
        raise UnreadableDataError(f"not read: it has {len(first):,} columns, at most {MOST_FIELDS:,} are read")
    numbers = [cell for cell in first if _number(cell) is not None]
    counted = [cell for cell in first if cell.strip()] == [str(i) for i in range(len(numbers))] and len(numbers) > 1
    if numbers and not counted:
        return _Layout([str(position) for position in range(len(first))], False, delimiter, encoding)
    seen: dict[str, int] = {}
    names = []
    for position, cell in enumerate(first):
        name = cell.strip() or str(position)
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}.{seen[name] - 1}")
    return _Layout(names, True, delimiter, encoding)


def _reader(text: str, delimiter: str) -> Iterator[list[str]]:
    csv.field_size_limit(1 << 27)
    stream = io.StringIO(text, newline="")
    return (row for row in csv.reader(stream, delimiter=delimiter, skipinitialspace=True) if row)


# ---- a whole piece together


def _scan_table(data: bytes, layout: _Layout, options: DataOptions, *, first: bool) -> Scanned | None:
    """The piece as one table; `None` if it has to be read cell by cell."""
    delimiter = layout.delimiter.encode()
    if layout.encoding == "utf-16" or b'"' in data or data.count(b"\r") != data.count(b"\r\n"):
        return None
    data = data.removeprefix(b"\xef\xbb\xbf") if first else data
    if b"0x" in data or b"0X" in data:
        return None  # pyarrow takes it for a number
    if delimiter + b" " in data or b"\n " in data or data[:1] == b" ":
        return None  # spaces before a cell do not belong to it
    if first and layout.has_header:
        data = data.lstrip(b"\r\n").partition(b"\n")[2]
    starts, ends = line_bounds(np.frombuffer(data, dtype=np.uint8)) if data else (np.empty(0, int), np.empty(0, int))
    if not len(starts):
        return Scanned()
    table = csv_table(data, layout.names, layout.delimiter, _EMPTY_SPELLINGS)
    if table is None or table.num_rows != len(starts) or table.num_columns != len(layout.names):
        return None
    made = Scanned(samples=table.num_rows)
    indices = np.arange(table.num_rows)
    blocks = [
        _table_column(name, column.combine_chunks(), indices)
        for name, column in zip(layout.names, table.columns, strict=True)
    ]
    if _MAY_SAY_NAN.search(data):  # pyarrow gives the same null for NaN and for an empty cell
        texts = csv_table(data, layout.names, layout.delimiter, None)
        blocks = [
            dataclasses.replace(block, nan_cells=_nan_cells(column.take(block.missing).to_pylist()))
            if len(block.missing) and texts is not None
            else block
            for block, column in zip(blocks, texts.columns if texts is not None else [None] * len(blocks), strict=True)
        ]
    made.measures += [measure(block, options, file_stem="") for block in blocks]
    cells = np.frombuffer(data.replace(delimiter, b"\x1f"), dtype=np.uint8)
    marks = line_digests(cells, starts, ends)
    made.measures.append(_row_measures(marks, 0))
    return made


def _table_column(name: str, column: Any, indices: Array) -> Block:
    """A column that pyarrow has parsed: numbers, or texts that are parsed again here."""
    import pyarrow

    types = pyarrow.types
    if types.is_integer(column.type) or types.is_floating(column.type):
        missing = np.asarray(column.is_null())
        numbers = np.asarray(column.drop_null().cast(pyarrow.float64()))
        block_kind = "int" if types.is_integer(column.type) else "float"
        return _number_block(name, block_kind, numbers, indices[~missing], indices[missing], indices[:0])
    if types.is_null(column.type):
        return text_block(name, missing=indices, foreign=indices[:0])
    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        missing = np.asarray(column.is_null())
        return text_block(name, missing=indices[missing], foreign=indices[~missing])
    compute = __import__("pyarrow.compute").compute
    trimmed = compute.utf8_lower(compute.utf8_trim_whitespace(column))
    if compute.any(compute.match_substring_regex(trimmed, r"^[-+]?(\.?[0-9]|inf)")).as_py():
        return _column(name, column.to_pylist(), indices)
    empty = np.asarray(compute.is_in(trimmed, value_set=pyarrow.array(sorted(_EMPTY))))
    return text_block(name, missing=indices[empty], foreign=indices[~empty])


# ---- row by row


def _scan_rows(data: bytes, layout: _Layout, options: DataOptions, *, first: bool) -> Scanned:
    """The measures of a piece of a CSV file; reading stops at the first line that cannot be parsed."""
    encoding = layout.encoding if first or layout.encoding == "utf-16" else "utf-8"
    made = Scanned()
    parts: dict[str, list[Measures]] = {}
    widths: list[int] = []
    rows = _reader(data.decode(encoding, errors="surrogateescape"), layout.delimiter)
    try:
        if first and layout.has_header:
            next(rows, None)
        for batch in iter(lambda: list(itertools.islice(rows, _ROWS)), []):
            _measure_batch(layout.names, made.samples, batch, options, parts, widths)
            made.samples += len(batch)
    except (csv.Error, UnicodeError) as error:
        made.stopped = str(error)
    made.measures = [joined(found) for found in parts.values()]
    if widths:
        made.measures[-1].shapes = {
            (1, len(layout.names)): np.setdiff1d(np.arange(made.samples), np.array(widths)),
            (OTHER_WIDTH,): np.array(widths, dtype=np.int64),
        }
    return made


def _measure_batch(
    names: list[str],
    first: int,
    rows: list[list[str]],
    options: DataOptions,
    parts: dict[str, list[Measures]],
    widths: list[int],
) -> None:
    """Add the measures of some rows, and note rows with too few or too many cells."""
    for offset, row in enumerate(rows):
        if len(row) != len(names):
            widths.append(first + offset)
    indices = np.arange(first, first + len(rows))
    for position, name in enumerate(names):
        cells = [row[position] if position < len(row) else None for row in rows]
        parts.setdefault(name, []).append(measure(_column(name, cells, indices), options, file_stem=""))
    texts = ["\x1f".join(row).encode("utf-8", "surrogateescape") for row in rows]
    ends = np.cumsum([len(text) for text in texts])
    joined_texts = np.frombuffer(b"".join(texts), dtype=np.uint8)
    marks = line_digests(joined_texts, ends - [len(text) for text in texts], ends)
    parts.setdefault(ROW, []).append(_row_measures(marks, first))


def _row_measures(marks: Array, first: int) -> Measures:
    """Whole rows, as their digests."""
    return Measures(ROW, "identifier", "int", rows=len(marks), entries=len(marks), marks=marks, start=first)


def _column(name: str, cells: list[str | None], indices: Array) -> Block:
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
    nan_cells = _nan_cells(cells[position] for position in missing)
    if not len(filled):
        return dataclasses.replace(
            text_block(name, missing=indices[missing], foreign=indices[foreign]), nan_cells=nan_cells
        )
    looked = [cells[i] or "" for i in filled[:64]]
    whole = all("." not in cell and "e" not in cell.lower() for cell in looked)
    numbers = values[filled]
    is_whole = whole and bool(np.isfinite(numbers).all()) and bool((numbers == np.trunc(numbers)).all())
    kind = "int" if is_whole else "float"
    block = _number_block(name, kind, numbers, indices[filled], indices[missing], indices[foreign])
    return dataclasses.replace(block, nan_cells=nan_cells)


def _nan_cells(cells: Iterable[str | None]) -> int:
    """How many cells say NaN, rather than nothing."""
    return sum(cell is not None and cell.strip().lower() in _NAN for cell in cells)


def _number_block(name: str, kind: Any, numbers: Array, filled: Array, missing: Array, foreign: Array) -> Block:
    """The block holds the numbers only; the indices of the others are passed separately."""
    if not len(numbers):
        return text_block(name, missing=missing, foreign=foreign)
    rows = Rows(numbers, len(numbers), 1)
    return Block(name, kind, rows, filled, shape=(), table=True, missing=missing, foreign=foreign)


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
