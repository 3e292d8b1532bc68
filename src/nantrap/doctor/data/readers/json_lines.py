"""JSON lines: one object per line. Keys are fields; an object inside an object gives `outer.inner`.

A piece is parsed as a whole by pyarrow where it is installed, which uses every core. What pyarrow reads otherwise than
JSON lines are meant (a key that is missing here and there, NaN, a broken line) is parsed line by line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from nantrap.doctor.data.measures import Measures, joined, measure
from nantrap.doctor.data.readers.arrow_files import blocks_of_batch, whole_json_table
from nantrap.doctor.data.readers.records import DEEPEST, measure_records
from nantrap.doctor.data.readers.text_pieces import line_bounds, read_piece, whole_of
from nantrap.doctor.data.roles import DataOptions
from nantrap.doctor.data.shards import CHANGED, DataProblem, Scanned, Shard
from nantrap.doctor.data.stored import open_source

_LINES = 4_000
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
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            batch.append((made.samples, json.loads(line)))
        except (ValueError, RecursionError):
            made.bad.append(made.samples)
        made.samples += 1
        if len(batch) >= _LINES:
            measure_records(batch, options, parts)
            batch = []
    measure_records(batch, options, parts)
    made.measures = [joined(found) for found in parts.values()]
    return made
