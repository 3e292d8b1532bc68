"""Parquet, Arrow and Feather through pyarrow: a shard per row group, columns without a Python loop over values."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from nantrap.doctor.data.limits import MOST_FIELDS, MOST_LINE, MOST_SAMPLE, refuse_size
from nantrap.doctor.data.measures import Measures, joined, measure, thinned
from nantrap.doctor.data.readers.arrays import LONG, kind_of
from nantrap.doctor.data.roles import DataOptions
from nantrap.doctor.data.rows import Array, Block, Rows, text_block
from nantrap.doctor.data.shards import DataProblem, Plan, Scanned, Shard, UnreadableDataError
from nantrap.doctor.data.stored import as_stream, open_source
from nantrap.errors import MissingExtraError

_IMAGE_KEYS = {"bytes", "path"}
_FILE_MAGIC = b"ARROW1"
_PADDED_MAGIC = b"ARROW1\0\0"
_CONTINUES = 0xFFFFFFFF
_MOST_HEADER = 64 << 20


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", extra="data") from error
    return pyarrow


def plan(path: str, format: str) -> Plan:
    """A shard per row group; an Arrow stream is one shard."""
    arrow = _arrow()
    with _opened(path) as stream:
        if format == "parquet":
            file = arrow.parquet.ParquetFile(stream)
            columns = len(file.schema)
            if columns > MOST_FIELDS:
                raise UnreadableDataError(f"not read: it has {columns:,} columns, at most {MOST_FIELDS:,} are read")
            shards, start = [], 0
            for part in range(file.num_row_groups):
                group = file.metadata.row_group(part)
                refuse_size(group.total_byte_size // max(1, group.num_rows), "a row", MOST_LINE)
                stop = start + group.num_rows
                shards.append(Shard(path, format, start=start, stop=stop, part=part, bytes=group.total_byte_size))
                start = stop
            return Plan(tuple(shards) or (Shard(path, format, stop=0, part=-1),))
        for size in _batch_sizes(stream):
            refuse_size(size, "a record batch", MOST_SAMPLE)
        stream.seek(0, 2)
        return Plan((Shard(path, format, bytes=stream.tell()),))


def scan(shard: Shard, options: DataOptions) -> Scanned:
    """Measure all columns of a row group or of a stream of record batches."""
    arrow = _arrow()
    made = Scanned()
    parts: dict[str, list[Measures]] = {}
    is_long = False
    with _opened(shard.path) as stream:
        try:
            for start, batch, total in _batches(arrow, stream, shard):
                batch.validate(full=True)  # a forged offset would make pyarrow read outside its memory
                if not is_long and max(total, made.samples) > LONG:  # not every number per row is kept
                    is_long = True
                    parts = {name: [thinned(joined(found))] for name, found in parts.items()}
                for block in blocks_of_batch(batch, start, made):
                    part = measure(block, options, file_stem="")
                    if block.table:
                        part.shapes = {}  # a column of numbers has one shape, and its indices need not be kept
                    parts.setdefault(block.field or "", []).append(thinned(part) if is_long else part)
                made.samples += batch.num_rows
        except (arrow.ArrowException, OSError) as error:
            made.problems.append(
                DataProblem(f"damaged from row {shard.start + made.samples:,} on: {_first_line(error)}")
            )
    made.measures = [joined(found) for found in parts.values()]
    return made


def blocks_of_batch(batch: Any, start: int, made: Scanned) -> Iterator[Block]:
    """The columns of a record batch as blocks.

    Args:
        batch: of pyarrow.
        start: the number of its first row.
        made: takes the problems.
    """
    arrow = _arrow()
    for name, column in _columns(arrow, batch):
        yield from _blocks(arrow, name, column, start, made)


def whole_json_table(data: bytes, *, deep: int) -> Any:
    """JSON lines as one table, or `None` where a table would not say what the lines say.

    A table has null where a line lacks a key, and no NaN; such lines, and broken ones, must be read one by one.

    Args:
        data: the lines.
        deep: how many objects inside of objects a column may come from.
    """
    try:
        import pyarrow.json
    except ImportError:  # it is an extra, and only makes this faster
        return None
    reading = pyarrow.json.ReadOptions(use_threads=False, block_size=max(1024, len(data) + 1))
    try:
        table = pyarrow.json.read_json(pyarrow.BufferReader(data), read_options=reading)
    except (pyarrow.ArrowException, UnicodeError):
        return None
    chunks = (chunk for column in table.columns for chunk in column.chunks)
    return table if all(_is_complete(pyarrow, chunk, deep) for chunk in chunks) else None


def _is_complete(arrow: Any, column: Any, deep: int) -> bool:
    """Whether a column has a value everywhere, at every level."""
    kind = column.type
    if column.null_count or arrow.types.is_null(kind) or deep < 1:
        return False
    if arrow.types.is_struct(kind):
        return all(_is_complete(arrow, column.field(position), deep - 1) for position in range(kind.num_fields))
    if arrow.types.is_list(kind):
        return _is_complete(arrow, column.flatten(), deep)
    return True


def csv_table(data: bytes, names: list[str], delimiter: str, empty: list[str] | None) -> Any:
    """Rows of CSV without quotes as one table, or `None` if they have to be read one by one.

    Args:
        data: the rows, without a header.
        names: of the columns.
        delimiter: between cells.
        empty: texts that mean a missing number; with `None` all cells are returned as text.
    """
    try:
        import pyarrow.csv
    except ImportError:  # it is an extra, and only makes this faster
        return None
    options = pyarrow.csv
    columns = [str(position) for position in range(len(names))]
    types = {column: pyarrow.string() for column in columns} if empty is None else None
    try:
        return options.read_csv(
            pyarrow.BufferReader(data),
            read_options=options.ReadOptions(
                use_threads=False, block_size=max(1024, len(data) + 1), column_names=columns
            ),
            parse_options=options.ParseOptions(delimiter=delimiter, quote_char=False),
            convert_options=options.ConvertOptions(
                null_values=empty or [], strings_can_be_null=False, timestamp_parsers=[], column_types=types
            ),
        )
    except (pyarrow.ArrowException, UnicodeError):  # a row of another width, bytes that are no text
        return None


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    """The file as a stream; errors of Arrow while it is read become one that names the damage."""
    arrow = _arrow()
    with open_source(path) as source:
        if source.size == 0:
            raise UnreadableDataError("the file is empty")
        with as_stream(source) as stream:
            try:
                yield stream
            except (arrow.ArrowException, OSError) as error:
                raise UnreadableDataError(f"not a whole file of its kind: {_first_line(error)}") from error


def _batches(arrow: Any, stream: Any, shard: Shard) -> Iterator[tuple[int, Any, int]]:
    """Record batches with the number of their first row, and the number of all rows of the file; 0 if not known."""
    start = shard.start
    if shard.format == "parquet":
        if shard.part >= 0:
            file = arrow.parquet.ParquetFile(stream)
            total = file.metadata.num_rows
            size = 16_384 if total <= LONG else 262_144 // max(1, min(16, len(file.schema)))
            for batch in file.iter_batches(row_groups=[shard.part], batch_size=size):
                yield start, batch, total
                start += batch.num_rows
        return
    try:
        reader = arrow.ipc.open_file(stream)
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
    except arrow.ArrowInvalid as error:
        stream.seek(0)
        if stream.read(6) == _FILE_MAGIC:
            raise UnreadableDataError("the Arrow file has no directory at its end: it is cut or damaged") from error
        stream.seek(0)
        batches = iter(arrow.ipc.open_stream(stream))
    for batch in batches:
        yield start, batch, 0
        start += batch.num_rows


def _columns(arrow: Any, batch: Any) -> Iterator[tuple[str, Any]]:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        yield from _flat(arrow, name, column)


def _flat(arrow: Any, name: str, column: Any) -> Iterator[tuple[str, Any]]:
    """A struct gives one column per member, unless it is an encoded image."""
    types = arrow.types
    if isinstance(column, arrow.ExtensionArray):
        column = column.storage
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_struct(column.type) and not {field.name for field in column.type} >= _IMAGE_KEYS:
        for position, field in enumerate(column.type):
            yield from _flat(arrow, f"{name}.{field.name}", column.field(position))
    else:
        yield name, column


def _blocks(arrow: Any, name: str, column: Any, start: int, made: Scanned) -> list[Block]:
    """A column as blocks."""
    types = arrow.types
    indices = np.arange(start, start + len(column))
    if types.is_struct(column.type) or (types.is_binary(column.type) and _is_image(column)):
        return _images(name, column, indices, made)
    missing = indices[np.asarray(column.is_null())] if column.null_count else indices[:0]
    if column.null_count:
        kept = np.asarray(column.is_valid())
        column, indices = column.drop_null(), indices[kept]
    lengths: list[Array] = []
    shape: list[int] = []
    values = column
    while types.is_list(values.type) or types.is_large_list(values.type) or types.is_fixed_size_list(values.type):
        if types.is_fixed_size_list(values.type):
            shape.append(values.type.list_size)
            lengths.append(np.full(len(values), values.type.list_size, dtype=np.int64))
        else:
            lengths.append(np.asarray(values.value_lengths(), dtype=np.int64) if len(values) else np.empty(0, np.int64))
            shape.append(-1)
        values = values.flatten()
    number = values.type
    if not (
        types.is_integer(number) or types.is_floating(number) or types.is_boolean(number) or types.is_decimal(number)
    ):
        return [text_block(name, missing=indices[:0], foreign=indices)]
    flat = np.asarray(values.cast(arrow.float64()) if types.is_decimal(number) else values)  # null becomes NaN
    used, kind = kind_of(flat.dtype, tuple(shape))
    if kind == "other":
        return [text_block(name, missing=indices[:0], foreign=indices)]
    flat = flat.view(used) if kind == "half" else flat
    if not lengths:
        rows = Rows(flat, len(flat), 1)
        return [Block(name, kind, rows, indices, shape=(), table=True, missing=missing)]
    rows, shapes = _nested(flat, lengths)
    same = len(set(shapes)) <= 1 and all(isinstance(size, int) for size in (shapes[0] if shapes else ()))
    return [
        Block(
            name,
            kind,
            rows,
            indices,
            shape=shapes[0] if same and shapes else None,  # type: ignore[arg-type]
            shapes=() if same else tuple(shapes),
            missing=missing,
        )
    ]


def _nested(flat: Array, lengths: list[Array]) -> tuple[Rows, list[tuple[object, ...]]]:
    """Rows of nested lists, with the shape of each: `ragged` where inner lists differ."""
    outer = lengths[0]
    shapes: list[tuple[object, ...]] = [(int(length),) for length in outer]
    totals = outer
    for inner in lengths[1:]:
        rows = Rows.of_lists(inner, totals)
        if rows.count:
            least = rows.reduce(np.minimum, inner, empty=0)
            most = rows.reduce(np.maximum, inner, empty=0)
            shapes = [
                (*shape, int(low) if low == high else "ragged")
                for shape, low, high in zip(shapes, least, most, strict=True)
            ]
            totals = rows.reduce(np.add, inner, empty=0)
    return Rows.of_lists(flat, totals), shapes


def _is_image(column: Any) -> bool:
    from nantrap.doctor.data.readers.images import is_image

    first = next((value.as_py() for value in column[:4] if value.is_valid), None)
    return first is not None and is_image(first[:16])


def _images(name: str, column: Any, indices: Array, made: Scanned) -> list[Block]:
    """Encoded images in a column."""
    from nantrap.doctor.data.readers.images import decode
    from nantrap.doctor.data.readers.records import blocks_of_column

    values: list[tuple[int, Any]] = []
    for index, item in zip(indices.tolist(), column.to_pylist(), strict=True):
        data = item.get("bytes") if isinstance(item, dict) else item
        if data is None:
            continue  # the file is elsewhere; only its path is here
        try:
            values.append((index, decode(data)))
        except UnreadableDataError as error:
            made.problems.append(DataProblem(f"sample {index:,}: {error}", name, (index,)))
    return blocks_of_column(name, values, table=False) if values else []


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]


# ---- how large record batches become in memory
#
# Read from their headers, without decompressing them. A compressed buffer begins with its size in memory. The headers
# are FlatBuffers: a table begins with the distance to its list of fields, which holds where in it each of them is.


def _batch_sizes(stream: Any) -> Iterator[int]:
    """The bytes that each record batch and each dictionary takes in memory."""
    at = len(_PADDED_MAGIC) if stream.read(len(_PADDED_MAGIC)) == _PADDED_MAGIC else 0
    while True:
        stream.seek(at)
        head = stream.read(8)
        if len(head) < 8:
            return
        first, length = struct.unpack("<II", head)
        if first != _CONTINUES:  # written before 2019
            length, at = first, at - 4
        if length == 0 or length > _MOST_HEADER:
            return
        stream.seek(at + 8)
        header = stream.read(length)
        try:
            body, buffers, is_compressed = _batch(header)
        except struct.error:
            raise UnreadableDataError("damaged: the header of a record batch is not whole") from None
        begin = at + 8 + length
        if buffers:
            yield sum(_expanded(stream, begin + offset, size, is_compressed) for offset, size in buffers)
        at = begin + body
        if body < 0:
            return


def _expanded(stream: Any, offset: int, size: int, is_compressed: bool) -> int:
    if not is_compressed or size < 8:
        return max(size, 0)
    stream.seek(offset)
    (expanded,) = struct.unpack("<q", stream.read(8))
    return int(expanded) if expanded >= 0 else size  # -1: this one is not compressed


def _batch(header: bytes) -> tuple[int, list[tuple[int, int]], bool]:
    """The bytes behind a header, its buffers (offset, bytes), and whether they are compressed."""

    def field(table: int, number: int) -> int:
        """Where a field of a table is; 0 if it is not there."""
        fields = table - struct.unpack_from("<i", header, table)[0]
        place = 4 + 2 * number
        if place >= struct.unpack_from("<H", header, fields)[0]:
            return 0
        offset = struct.unpack_from("<H", header, fields + place)[0]
        return int(table + offset) if offset else 0

    def target(place: int) -> int:
        return int(place + struct.unpack_from("<I", header, place)[0])

    message = target(0)
    length = field(message, 3)
    body = struct.unpack_from("<q", header, length)[0] if length else 0
    kind = field(message, 1)
    which = header[kind] if kind else 0
    if which not in (2, 3) or not field(message, 2):  # a dictionary holds a record batch
        return body, [], False
    batch = target(field(message, 2))
    if which == 2:
        if not field(batch, 1):
            return body, [], False
        batch = target(field(batch, 1))
    if not field(batch, 2):
        return body, [], False
    vector = target(field(batch, 2))
    (count,) = struct.unpack_from("<I", header, vector)
    if vector + 4 + 16 * count > len(header):
        raise struct.error
    buffers = [struct.unpack_from("<qq", header, vector + 4 + 16 * number) for number in range(count)]
    return body, buffers, bool(field(batch, 3))
