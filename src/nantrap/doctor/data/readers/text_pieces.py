"""Text files in pieces: where a file of lines may be cut, and how the results of its pieces become those of the file.

The number of a line is known only after the lines before it. So a piece counts from 0, and when all pieces of a file
are there, what each found is moved on by the number of samples before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nantrap.doctor.data.limits import MOST_LINE, refuse_size
from nantrap.doctor.data.measures import moved
from nantrap.doctor.data.rows import Array
from nantrap.doctor.data.shards import DataProblem, Plan, Scanned, Shard, UnreadableDataError
from nantrap.doctor.data.stored import open_source

PIECE = 8 << 20
"""Bytes of one piece of work."""
_WINDOW = 1 << 20
MOST_UTF16 = 64 << 20
"""Bytes of a file in UTF-16, and of one with a quote that is never closed: they are read in one piece."""


def plan_lines(path: str, format: str) -> Plan:
    """Pieces of about 8 MB that end with a line; in CSV with one that ends a row, outside of quotes."""
    with open_source(path) as source:
        if source.size == 0:
            raise UnreadableDataError("the file is empty")
        head = source.read(0, 4096)
        if head[:2] in (b"\xff\xfe", b"\xfe\xff"):  # UTF-16: its line ends are two bytes
            refuse_size(source.size, "a file in UTF-16", MOST_UTF16)
            return Plan((Shard(path, format, end=source.size, bytes=source.size),))
        if b"\0" in head:
            raise UnreadableDataError("not text: it holds zero bytes")
        cuts, problems = [0], []
        while source.size - cuts[-1] > PIECE + PIECE // 2:
            cut = _cut(source, cuts[-1], quoted=format == "csv")
            if cut is None:
                text = f"not read from byte {cuts[-1]:,} on: a line is longer than {MOST_LINE:,} bytes"
                problems.append(DataProblem(text))
                break
            if cut >= source.size:
                cuts.append(source.size)
                break
            cuts.append(cut)
        if not problems and cuts[-1] < source.size:
            cuts.append(source.size)
        pieces = zip(range(len(cuts)), cuts, cuts[1:], strict=False)
        return Plan(
            tuple(
                Shard(path, format, part=part, begin=begin, end=end, bytes=end - begin) for part, begin, end in pieces
            ),
            problems=tuple(problems),
        )


def _cut(source: Any, begin: int, *, quoted: bool) -> int | None:
    """Where a piece ends that begins here: behind the first line end after 8 MB. `None` if that line is too long.

    A line end between quotes ends no row. A quote that is never closed is one of its own (5" is a length): if all line
    ends in reach are between quotes, the first one is taken.
    """
    is_open = bool(_count(source, begin, begin + PIECE) % 2) if quoted else False
    first: int | None = None
    offset = begin + PIECE
    while offset < min(source.size, begin + PIECE + MOST_LINE):
        window = source.read(offset, min(_WINDOW, source.size - offset))
        if not window:
            break
        data = np.frombuffer(window, dtype=np.uint8)
        ends = np.flatnonzero(data == 10)
        quotes = np.cumsum(data == 34)
        outside = ends[(quotes[ends] + is_open) % 2 == 0] if quoted else ends
        if len(outside):
            return int(offset + outside[0] + 1)
        if first is None and len(ends):
            first = int(offset + ends[0] + 1)
        is_open ^= quoted and bool(quotes[-1] % 2)
        offset += len(window)
    return first if offset < source.size else first or int(source.size)


def _count(source: Any, begin: int, end: int) -> int:
    return sum(source.read(at, min(_WINDOW, end - at)).count(b'"') for at in range(begin, end, _WINDOW))


def read_piece(source: Any, shard: Shard) -> tuple[bytes, bool]:
    """The bytes of a piece, and whether they are all there and unchanged."""
    data: bytes = source.read(shard.begin, shard.end - shard.begin)
    return data, len(data) == shard.end - shard.begin and not source.changed()


def line_bounds(data: Array) -> tuple[Array, Array]:
    """Where each line that is not empty begins and ends, without its line end.

    Args:
        data: bytes.
    """
    is_end = data == 10
    after_end = np.append(True, is_end[:-1])[: len(data)]  # one entry for each filled line, not for each empty one
    starts, ends = np.flatnonzero(after_end & ~is_end), np.flatnonzero(is_end & ~after_end)
    if len(ends) < len(starts):  # the last line has no end
        ends = np.append(ends, len(data))
    ends = ends - (data[ends - 1] == 13)
    filled = ends > starts
    return starts[filled], ends[filled]


def whole_of(pieces: Sequence[Scanned]) -> Scanned:
    """What the pieces of one file gave, counted through the whole file."""
    whole = Scanned()
    for piece in pieces:
        whole.measures += [moved(made, whole.samples) for made in piece.measures]
        whole.problems += [_moved_problem(problem, whole.samples) for problem in piece.problems]
        whole.bad += [index + whole.samples for index in piece.bad]
        whole.samples += piece.samples
    return whole


def _moved_problem(problem: DataProblem, by: int) -> DataProblem:
    return DataProblem(problem.message, problem.field, tuple(index + by for index in problem.indices))
