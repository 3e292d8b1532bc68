"""A block of samples of one field: all values in one flat array, cut into rows of equal or of different length.

Arrays in files have equal rows, lists in JSON or Arrow have not. The rules see `Rows` only, so each is written once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]

ValueKind = Literal["float", "half", "bfloat16", "int", "bool", "image", "text", "other"]
"""`half` and `bfloat16` are held as their 16 bits; `image` is whole pixels; `text` and `other` are only counted."""

SampleShape = tuple[object, ...]
"""What must agree between samples: rank and dimensions, or for images the number of channels."""

NOT_A_NUMBER: Final = "not a number"
"""The shape of a sample that is text where the others are numbers."""

OTHER_WIDTH: Final = "another number of cells"
"""The shape of a row of a table that has more or fewer cells than most."""

_WORDS = 32
"""How many words of a long row its mark reads. Rows with equal marks are compared in full later."""
_FACTORS = np.random.default_rng(1).integers(1, 2**63, _WORDS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
_LINE_FACTORS = np.random.default_rng(2).integers(1, 2**63, 8191, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
_ALL = np.uint64(2**64 - 1)
_AT_ONCE = 256 << 10
_COLUMNWISE = 24
"""Rows shorter than this are reduced column by column: a reduction along a short axis costs mostly its set-up."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Samples in a flat array.

    Attributes:
        flat: the values of all samples, one after the other.
        count: how many samples.
        width: values per sample, or -1 if that differs.
        starts: where each sample begins in `flat`, with the end as last entry; only if widths differ.
    """

    flat: Array
    count: int
    width: int
    starts: Indices | None = None

    @classmethod
    def of_array(cls, array: Array) -> Rows:
        """Every entry along dimension 0 is a sample."""
        count = array.shape[0]
        return cls(np.ascontiguousarray(array).reshape(-1), count, math.prod(array.shape[1:]))

    @classmethod
    def of_lists(cls, flat: Array, lengths: Array) -> Rows:
        """Samples of these lengths, one after the other in `flat`."""
        starts = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=starts[1:])
        if len(lengths) and (lengths == lengths[0]).all():
            return cls(flat, len(lengths), int(lengths[0]))
        return cls(flat, len(lengths), -1, starts)

    @property
    def widths(self) -> Indices:
        """Values of each sample."""
        if self.starts is None:
            return np.full(self.count, self.width, dtype=np.int64)
        return np.diff(self.starts)

    def reduce(self, ufunc: np.ufunc, flat: Array, empty: Any) -> Array:
        """`ufunc` over the values of each sample; `empty` for a sample without values."""
        if self.starts is None:
            if self.width == 0:
                return np.full(self.count, empty, dtype=flat.dtype)
            table = flat.reshape(self.count, self.width)
            if self.width == 1:
                return table[:, 0]
            if self.width > _COLUMNWISE:
                return np.asarray(ufunc.reduce(table, axis=1))
            result = ufunc(table[:, 0], table[:, 1])
            for column in range(2, self.width):
                ufunc(result, table[:, column], out=result)
            return np.asarray(result)
        result = np.full(self.count, empty, dtype=flat.dtype)
        filled = np.flatnonzero(np.diff(self.starts) > 0)
        if len(filled):
            result[filled] = ufunc.reduceat(flat, self.starts[filled])
        return result

    def any(self, flags: Array) -> Array:
        """Whether a flag is set in each sample."""
        return self.reduce(np.logical_or, flags, empty=False)

    def all(self, flags: Array) -> Array:
        """Whether every flag is set in each sample; false for a sample without values."""
        if self.width == 0:
            return np.zeros(self.count, dtype=np.bool_)
        return self.reduce(np.logical_and, flags, empty=False)

    def row(self, index: int) -> Array:
        """The values of one sample."""
        if self.starts is None:
            return self.flat[index * self.width : (index + 1) * self.width]
        return self.flat[self.starts[index] : self.starts[index + 1]]

    @property
    def bounds(self) -> Indices:
        """Where each sample begins in `flat`, with the end as last entry."""
        if self.starts is not None:
            return self.starts
        return np.arange(self.count + 1, dtype=np.int64) * self.width

    def digests(self) -> Array:
        """A hash of each sample's bytes: equal samples have equal digests, others practically never."""
        data = np.ascontiguousarray(self.flat).view(np.uint8)
        bounds = self.bounds * self.flat.itemsize
        return line_digests(data, bounds[:-1], bounds[1:])

    def marks(self) -> Array:
        """A cheap hash that reads at most 32 words of each sample. Different marks mean different samples."""
        size = self.width * self.flat.itemsize
        unit = next(unit for unit in (8, 4, 2, 1) if size % unit == 0)
        words = self.flat.view(f"u{unit}").reshape(self.count, size // unit)
        if words.shape[1] > _WORDS:
            half = _WORDS // 2  # the beginning densely, since padded sequences differ there, and the rest spread out
            spread = np.linspace(half, words.shape[1] - 1, _WORDS - half).astype(np.int64)
            words = words[:, np.concatenate([np.arange(half), spread])]
        mark = (words * _FACTORS[: words.shape[1]]).sum(axis=1, dtype=np.uint64)
        mark ^= mark >> np.uint64(29)
        return np.asarray(mark)


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive samples of one field.

    Attributes:
        field: its name; `None` if the file holds nothing else.
        kind: what its values are.
        rows: the values; empty for text.
        indices: the number of each sample in its file; samples that are missing or text are not among them.
        shape: the shape of each sample, if all have the same.
        shapes: the shape of each sample otherwise.
        table: a column of a table, where a number per row may be anything: a feature, a count, an id.
        missing: samples whose value is empty or null though the field has numbers.
        nan_cells: how many of `missing` are cells of text that say NaN.
        foreign: samples whose value is text though the field has numbers.
        exact: the samples' marks are digests, because the reader cannot go back to compare two samples.
        lone: the field is the only array of its file.
    """

    field: str | None
    kind: ValueKind
    rows: Rows
    indices: Indices
    shape: tuple[int, ...] | None = None
    shapes: tuple[tuple[object, ...], ...] = ()
    table: bool = False
    missing: Indices = dataclasses.field(default_factory=lambda: np.empty(0, dtype=np.int64))
    foreign: Indices = dataclasses.field(default_factory=lambda: np.empty(0, dtype=np.int64))
    exact: bool = True
    lone: bool = False
    nan_cells: int = 0


def text_block(name: str | None, *, missing: Indices, foreign: Indices, table: bool = True) -> Block:
    """A field without numbers: which of its samples are missing, and which are text or something else."""
    return Block(name, "text", Rows(np.empty(0), 0, 0), foreign[:0], table=table, missing=missing, foreign=foreign)


def line_digests(data: Array, starts: Array, ends: Array) -> Array:
    """A hash of each piece of some bytes: equal pieces have equal digests, others practically never.

    Multilinear hashing of words of 8 bytes, for many pieces together: a call per piece would cost more than reading it.

    Args:
        data: the bytes.
        starts: where each piece begins, in ascending order.
        ends: where it ends.
    """
    made = np.empty(len(starts), dtype=np.uint64)
    first = 0
    while first < len(starts):  # what is processed together stays in the processor's cache
        last = max(first + 1, int(np.searchsorted(ends, starts[first] + _AT_ONCE, side="right")))
        begin = int(starts[first])
        part = data[begin : int(ends[last - 1])]
        if len(part) > _AT_ONCE:  # a single large piece, for which a call is worth while
            made[first] = digest(part)
            first += 1
            continue
        made[first:last] = _digests(part, starts[first:last] - begin, ends[first:last] - begin)
        first = last
    return made


def _digests(data: Array, starts: Array, ends: Array) -> Array:
    """A hash of the bytes of each line, computed for all lines at once, eight bytes at a time."""
    padded = np.concatenate([data, np.zeros(8, dtype=np.uint8)])
    anywhere = np.lib.stride_tricks.as_strided(padded[:8].view(np.uint64), shape=(len(padded) - 7,), strides=(1,))
    counts = np.maximum((ends - starts + 7) // 8, 1)
    first = np.zeros(len(counts), dtype=np.int64)
    np.cumsum(counts[:-1], out=first[1:])
    number = np.arange(int(counts.sum())) - np.repeat(first, counts)
    at = np.repeat(starts, counts) + 8 * number
    kept = np.minimum(np.repeat(ends, counts) - at, 8).astype(np.uint64)  # bytes of this word that belong to the line
    mask = np.where(kept == 8, _ALL, (np.uint64(1) << (kept * np.uint64(8))) - np.uint64(1))
    words = (anywhere[at] & mask) + np.uint64(1)
    with np.errstate(over="ignore"):
        made = np.add.reduceat(words * _LINE_FACTORS[number % len(_LINE_FACTORS)], first)
        made += (ends - starts).astype(np.uint64) * _LINE_FACTORS[-1]
        made ^= made >> np.uint64(29)
    return np.asarray(made)


def digest(row: Array) -> int:
    """64 bits of the BLAKE2 hash of an array's bytes."""
    data = np.ascontiguousarray(row).view(np.uint8).reshape(-1)
    return int.from_bytes(hashlib.blake2b(data.data, digest_size=8).digest(), "little")
