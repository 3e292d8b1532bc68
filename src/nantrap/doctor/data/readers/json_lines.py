"""JSON lines: one object per line. Keys are fields; an object inside an object gives `outer.inner`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from nantrap.doctor.data.measure import measure
from nantrap.doctor.data.measures import Measures, joined
from nantrap.doctor.data.readers.records import blocks_of_column
from nantrap.doctor.data.roles import DataOptions
from nantrap.doctor.data.shards import Plan, Problem, Scanned, Shard, UnreadableDataError
from nantrap.doctor.data.stored import as_stream, open_source

_LINES = 4_000
_DEEP = 4
_LENGTH = 256 << 20


def plan(path: str, format: str) -> Plan:
    """One shard: the number of a line is known only after the lines before it."""
    with open_source(path) as source:
        if source.size == 0:
            raise UnreadableDataError("the file is empty")
        if b"\0" in source.read(0, 4096):
            raise UnreadableDataError("not text: it holds zero bytes")
        return Plan((Shard(path, format, bytes=source.size),))


def scan(shard: Shard, options: DataOptions) -> Scanned:
    """Measure all fields of all lines. A line that is no JSON is reported; the others are read."""
    made = Scanned()
    bad: list[int] = []
    parts: dict[str | None, list[Measures]] = {}
    with open_source(shard.path) as source:
        with as_stream(source) as stream:
            batch: list[tuple[int, Any]] = []
            for index, line in _lines(stream):
                made.samples = index + 1
                try:
                    batch.append((index, json.loads(line)))
                except (ValueError, RecursionError):
                    bad.append(index)
                if len(batch) >= _LINES:
                    measure_records(batch, options, parts)
                    batch = []
            measure_records(batch, options, parts)
        if source.changed():
            made.problems.append(Problem("changed while it was read; check it again when nothing writes to it"))
    made.measures = [joined(found) for found in parts.values()]
    if bad and len(bad) == made.samples:
        made.problems.append(Problem("not JSON lines: no line is a JSON value"))
        made.samples = 0
    elif bad:
        what = "the last line is cut" if bad == [made.samples - 1] else f"{len(bad):,} lines are not JSON"
        made.problems.append(Problem(f"{what}: line index {', '.join(map(str, bad[:5]))}", None, tuple(bad)))
    return made


def _lines(stream: Any) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, counted from 0."""
    index = 0
    first = True
    while line := stream.readline(_LENGTH):
        if first:
            line = line.removeprefix(b"\xef\xbb\xbf")
            first = False
        if line.strip():
            yield index, line
            index += 1


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


def _flat(name: str | None, value: Any, depth: int) -> Iterator[tuple[str | None, Any]]:
    if isinstance(value, dict) and depth < _DEEP:
        for key, inner in value.items():
            yield from _flat(str(key) if name is None else f"{name}.{key}", inner, depth + 1)
    elif not isinstance(value, dict):
        yield name, value if not isinstance(value, np.generic) else value.item()
