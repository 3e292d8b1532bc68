"""How a file is cut into pieces of work: a shard is read and measured alone, in any thread, process or machine.

Every format is a module of `readers` with `plan(path)`, which cuts a file into shards, and `scan(shard, options)`,
which measures one of them. Both sides are plain data, so that the same two functions run under any engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from nantrap.doctor.data.measures import Measures

CHANGED: Final = "changed while it was read; check it again when nothing writes to it"


class UnreadableDataError(Exception):
    """The file is cut, empty or not what its name says. The message says which."""


@dataclass(frozen=True, slots=True)
class DataProblem:
    """A part of a file that could not be read; `indices` are the samples concerned, if that is known.

    `help` is what to do about it, where writing the file again would not help.
    """

    message: str
    field: str | None = None
    indices: tuple[int, ...] = ()
    help: str = ""


@dataclass(frozen=True, slots=True)
class Shard:
    """A piece of one file.

    Attributes:
        path: the file.
        format: the name of its reader.
        field: the field to read, if the file's fields are read one by one.
        fields: several small fields that are read together, each of them whole.
        start: the first sample.
        stop: the sample after the last; -1 for all.
        part: which part, for a reader that counts otherwise (row groups, pieces of a text).
        begin: the first byte of a piece of text.
        end: the byte behind the last.
        bytes: roughly how much there is to read.
    """

    path: str
    format: str
    field: str | None = None
    fields: tuple[str | None, ...] = ()
    start: int = 0
    stop: int = -1
    part: int = 0
    bytes: int = 0
    begin: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A file cut into shards.

    Attributes:
        shards: the pieces.
        shapes: the shape of each field's samples, where the file states it for all samples.
        problems: what could not be read already now.
        notes: what is worth knowing and is no fault.
    """

    shards: tuple[Shard, ...]
    shapes: dict[str | None, tuple[int, ...]] = field(default_factory=dict)
    problems: tuple[DataProblem, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Scanned:
    """What a shard gave.

    Attributes:
        measures: of each field, possibly several for one field.
        problems: what could not be read.
        samples: how many samples were seen, for readers that see whole samples.
        bad: samples that are no samples: lines that are not JSON.
        stopped: why reading ended before the end of the piece.
        open_quote: a piece of CSV with an odd number of quotes: a cell continues in the next piece.
    """

    measures: list[Measures] = field(default_factory=list)
    problems: list[DataProblem] = field(default_factory=list)
    samples: int = 0
    bad: list[int] = field(default_factory=list)
    stopped: str = ""
    open_quote: bool = False
