"""Text files in pieces: where a file of lines may be cut, and how the results of its pieces become those of the file.

The number of a line is known only after the lines before it. So a piece counts from 0, and when all pieces of a file
are there, what each found is moved on by the number of samples before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nantrap.doctor.data.measures import moved
from nantrap.doctor.data.rows import Array
from nantrap.doctor.data.shards import DataProblem, Plan, Scanned, Shard, UnreadableDataError
from nantrap.doctor.data.stored import open_source

PIECE = 8 << 20
"""Bytes of one piece of work."""
_WINDOW = 1 << 20


def plan_lines(path: str, format: str) -> Plan:
    """Pieces of about 8 MB that end with a line."""
    with open_source(path) as source:
        if source.size == 0:
            raise UnreadableDataError("the file is empty")
        head = source.read(0, 4096)
        if head[:2] in (b"\xff\xfe", b"\xfe\xff"):  # UTF-16: its line ends are two bytes
            return Plan((Shard(path, format, end=source.size, bytes=source.size),))
        if b"\0" in head:
            raise UnreadableDataError("not text: it holds zero bytes")
        cuts = [0]
        while source.size - cuts[-1] > PIECE + PIECE // 2:
            cut = _line_end(source, cuts[-1] + PIECE)
            if cut >= source.size:
                break
            cuts.append(cut)
        cuts.append(source.size)
        pieces = zip(range(len(cuts)), cuts, cuts[1:], strict=False)
        return Plan(
            tuple(
                Shard(path, format, part=part, begin=begin, end=end, bytes=end - begin) for part, begin, end in pieces
            )
        )


def _line_end(source: Any, offset: int) -> int:
    """Behind the next line end from here on; the end of the file if there is none."""
    while offset < source.size:
        window = source.read(offset, min(_WINDOW, source.size - offset))
        found = window.find(b"\n")
        if found >= 0:
            return int(offset + found + 1)
        if not window:
            break
        offset += len(window)
    return int(source.size)


def read_piece(source: Any, shard: Shard) -> tuple[bytes, bool]:
    """The bytes of a piece, and whether they are all there and unchanged."""
    data: bytes = source.read(shard.begin, shard.end - shard.begin)
    return data, len(data) == shard.end - shard.begin and not source.changed()


def line_bounds(data: Array) -> tuple[Array, Array]:
    """Where each line that is not empty begins and ends, without its line end.

    Args:
        data: bytes.
    """
    ends = np.flatnonzero(data == 10)
    if not len(data) or data[-1] != 10:
        ends = np.append(ends, len(data))
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    carriage = (ends > starts) & (data[np.maximum(ends - 1, 0)] == 13)
    ends = ends - carriage
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
