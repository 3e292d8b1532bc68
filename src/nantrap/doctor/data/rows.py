"""A block of samples of one field: all values in one flat array, cut into rows of equal or of different length.

Arrays in files have equal rows, lists in JSON or Arrow have not. The rules see `Rows` only, so each is written once.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]

_WORDS = 32
"""How many words of a long row its mark reads. Rows with equal marks are compared in full later."""
_FACTORS = np.random.default_rng(1).integers(1, 2**63, _WORDS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
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

    def digests(self) -> Array:
        """A hash of each sample's bytes: equal samples have equal digests, others practically never."""
        made = np.empty(self.count, dtype=np.uint64)
        for index in range(self.count):
            made[index] = digest(self.row(index))
        return made

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


def digest(row: Array) -> int:
    """64 bits of the BLAKE2 hash of an array's bytes."""
    data = np.ascontiguousarray(row).view(np.uint8).reshape(-1)
    return int.from_bytes(hashlib.blake2b(data.data, digest_size=8).digest(), "little")
