"""JSON lines: one object per line. Keys are fields; an object inside an object gives `outer.inner`.

A piece is parsed as a whole by pyarrow where it is installed, which uses every core. What pyarrow reads otherwise than
JSON lines are meant (a key that is missing here and there, NaN, a broken line) is parsed line by line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nantrap.doctor.data.limits import MOST_LISTS
from nantrap.doctor.data.measures import Measures, joined, measure
from nantrap.doctor.data.readers.arrow_files import blocks_of_batch, whole_json_table
from nantrap.doctor.data.readers.records import DEEPEST, measure_records
from nantrap.doctor.data.readers.text_pieces import line_bounds, read_piece, whole_of
from nantrap.doctor.data.roles import DataOptions
from nantrap.doctor.data.shards import CHANGED, DataProblem, Scanned, Shard
from nantrap.doctor.data.stored import open_source
from nantrap.incident.wording import counted

_LINES = 4_000
_MOST_NESTED = 64
"""Deeper lines are parsed one by one, by a parser with a limit of its own: pyarrow's ends the process."""
MOST_NAMES = 10_000
"""Fields of one piece of a file; a line with more names than this is not read."""
_BOM = b"\xef\xbb\xbf"


def scan(shard: Shard, options: DataOptions) -> Scanned:
    """Measure all fields of all lines of a piece. A line that is no JSON is noted; the others are read."""
    with open_source(shard.path) as source:
        data, whole = read_piece(source, shard)
    data = data.removeprefix(_BOM) if not shard.begin else data
    made = _scan_table(data, options)
    if made is None:
        made = _scan_lines(data, options)
    if not whole:
        made.problems.append(DataProblem(CHANGED))
    return made


def combine(path: str, pieces: Sequence[Scanned], options: DataOptions) -> Scanned:
    """The pieces of one file, counted through the whole file; which of its lines are no JSON."""
    made = whole_of(pieces)
    if made.bad and len(made.bad) == made.samples:
        made.problems.append(DataProblem("not JSON lines: no line is a JSON value"))
        made.samples = 0
    elif made.bad:
        count = f"{len(made.bad):,} line{' is' if len(made.bad) == 1 else 's are'} not JSON"
        what = "the last line is cut" if made.bad == [made.samples - 1] else count
        shown = ", ".join(map(str, made.bad[:5]))
        made.problems.append(DataProblem(f"{what}: line index {shown}", None, tuple(made.bad)))
    return made


def _scan_table(data: bytes, options: DataOptions) -> Scanned | None:
    """All lines together; `None` if they have to be read one by one."""
    if not _fits_a_table(data):
        return None
    table = whole_json_table(data, deep=DEEPEST)
    if table is None:
        return None
    starts, _ = line_bounds(np.frombuffer(data, dtype=np.uint8))
    if table.num_rows != len(starts):  # blank lines, or several objects in a line
        return None
    made = Scanned(samples=table.num_rows)
    for batch in table.combine_chunks().to_batches():
        for block in blocks_of_batch(batch, 0, made):
            made.measures.append(measure(block, options, file_stem=""))
    return made


def _scan_lines(data: bytes, options: DataOptions) -> Scanned:
    """The measures of a piece of JSON lines; lines that are not JSON are noted."""
    made = Scanned()
    parts: dict[str | None, list[Measures]] = {}
    batch: list[tuple[int, Any]] = []
    names: set[str] = set()
    wide: list[int] = []
    crowded: list[int] = []
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        if _openings(line) > MOST_LISTS:
            crowded.append(made.samples)
            made.samples += 1
            continue
        try:
            value = json.loads(line) if line.count(b'":') <= MOST_NAMES else None
            found = set(_names(value, DEEPEST)) - names
            if len(names) + len(found) > MOST_NAMES or line.count(b'":') > MOST_NAMES:
                wide.append(made.samples)
            else:
                names |= found
                batch.append((made.samples, value))
        except (ValueError, RecursionError):
            made.bad.append(made.samples)
        made.samples += 1
        if len(batch) >= _LINES:
            measure_records(batch, options, parts)
            batch = []
    measure_records(batch, options, parts)
    made.measures = [joined(found) for found in parts.values()]
    if wide:
        text = f"{len(wide):,} lines were not read: the lines have more than {MOST_NAMES:,} different keys"
        made.problems.append(DataProblem(text, None, tuple(wide)))
    if crowded:
        text = f"{counted(len(crowded), 'line')} not read: more than {MOST_LISTS:,} lists and objects in a line"
        made.problems.append(DataProblem(text, None, tuple(crowded)))
    return made


def _fits_a_table(data: bytes) -> bool:
    """Whether a parser without limits may have the lines: not deeply nested, and not with very many names."""
    names: set[bytes] = set()
    for begin in range(0, len(data), _CHUNK):
        names.update(_KEY.findall(data, max(0, begin - 100), begin + _CHUNK))
        if len(names) > MOST_NAMES:
            return False
    nested, deepest = 0, 0
    most = max(map(_openings, data.split(b"\n")))
    if most <= _MOST_NESTED or most > MOST_LISTS:
        return most <= _MOST_NESTED
    for mark in _MARK.findall(data):
        if mark in b"[{":
            nested += 1
            deepest = max(deepest, nested)
        elif mark in b"]}":
            nested -= 1
    return deepest <= _MOST_NESTED


def _openings(line: bytes) -> int:
    return line.count(b"[") + line.count(b"{")


_CHUNK = 1 << 20
_KEY = re.compile(rb'"((?:[^"\\]|\\.){0,200})"\s*:')
_MARK = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')


def _names(value: Any, deep: int) -> Iterator[str]:
    """The fields of a line: its keys, and those of objects in it."""
    for key, inner in value.items() if isinstance(value, dict) and deep > 0 else ():
        yield key
        yield from (f"{key}.{name}" for name in _names(inner, deep - 1))
