"""What has been seen of one tensor so far, piece by piece, in any order and from any worker; values by their bits.

Almost every float is a sign and a magnitude, and magnitudes are in the order of their bits. So two reductions over
integers show everything about a chunk: the greatest signed integer is the greatest positive value, the greatest
unsigned integer the most negative one, and whatever is not finite lies at or above the bits of infinity.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from nantrap.checkpoints.audit.contents import DTYPES, DType, Extent, StoredTensor
from nantrap.thresholds import LARGEST, SQUARE_OVERFLOWS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nantrap.incident import TensorStats

    Bytes = NDArray[np.uint8]

_BLOCK_BYTES = 8 << 20
"""A view with gaps is counted in blocks that span about this much of the file."""


Rough = Literal["never", "positive", "always"]


class TensorScan(NamedTuple):
    """What a tensor holds. `low` and `high` are of the finite values; `stats` exists only if something was not
    finite."""

    tensor: StoredTensor
    low: float
    high: float
    stats: TensorStats | None = None
    first_index: tuple[int, ...] | None = None

    @property
    def is_constant(self) -> bool:
        """Whether all values are the same number."""
        return self.stats is None and self.low == self.high


class TensorTally:
    """The extremes of the finite values, the number of the others, and how many values lie before the first of them.

    With `rough`, most chunks of a large tensor are only filtered, in one pass: known to be finite and of ordinary size,
    and not negative if nothing before them was. `is_rough` says that this happened; `low` and `high` do not include
    those chunks. Still exact: whether the tensor is constant, whether a value is negative, and any magnitude
    beyond `SQUARE_OVERFLOWS`. `rough="positive"` filters only until a value is negative: then the least one is wanted.
    """

    def __init__(self, tensor: StoredTensor, *, rough: Rough = "never") -> None:
        self.tensor = tensor
        self.rough = rough
        self.is_rough = False
        self.low = math.inf
        self.high = -math.inf
        self.nan = self.posinf = self.neginf = 0
        self.first: int | None = None

    def look(self, data: Bytes, before: int) -> None:
        """Count the values in `data`; `before` of the tensor's values lie before them."""
        if self._may_be_filtered() and are_moderate(data, self.tensor.dtype, positive=self.low >= 0):
            self.is_rough = True
            return
        seen = extremes(data, self.tensor.dtype)
        if seen.finite:
            self._widen(seen.low, seen.high)
            return
        found = count(data, self.tensor.dtype)
        self._widen(found.low, found.high)
        self.nan += found.nan
        self.posinf += found.posinf
        self.neginf += found.neginf
        self._first(before + found.first)

    def add(self, other: TensorTally) -> None:
        """Take over what another worker saw of the same tensor."""
        self._widen(other.low, other.high)
        self.is_rough |= other.is_rough
        self.nan += other.nan
        self.posinf += other.posinf
        self.neginf += other.neginf
        if other.first is not None:
            self._first(other.first)

    def result(self) -> TensorScan:
        """The verdict, once all pieces were seen."""
        if self.first is None:
            return TensorScan(self.tensor, self.low, self.high)
        from nantrap.incident import TensorStats

        some_are_finite = self.low <= self.high
        stats = TensorStats(
            shape=self.tensor.shape,
            dtype=self.tensor.dtype.name,
            numel=self.tensor.numel,
            nan=self.nan,
            posinf=self.posinf,
            neginf=self.neginf,
            min=self.low if some_are_finite else None,
            max=self.high if some_are_finite else None,
        )
        return TensorScan(self.tensor, self.low, self.high, stats, self.tensor.index_at(self.first))

    def _may_be_filtered(self) -> bool:
        """Not the first chunk, nor while all values are the same, nor after anything remarkable."""
        if self.rough == "never" or self.first is not None:
            return False
        return -SQUARE_OVERFLOWS < self.low < self.high < SQUARE_OVERFLOWS and (self.rough == "always" or self.low >= 0)

    def _widen(self, low: float, high: float) -> None:
        self.low, self.high = min(self.low, low), max(self.high, high)

    def _first(self, position: int) -> None:
        self.first = position if self.first is None else min(self.first, position)


class Placed(NamedTuple):
    """A tensor whose bytes lie at `begin` to `end` of a buffer."""

    tensor: StoredTensor
    begin: int
    end: int


def look_at_many(buffer: Bytes, placed: Sequence[Placed]) -> list[TensorScan]:
    """One result for each of many small tensors, in the same order. Counts exactly only those that may hold a
    non-finite value."""
    results: dict[int, TensorScan] = {}
    for dtype in {item.tensor.dtype for item in placed}:
        for run in _runs(placed, dtype):
            base, end = placed[run[0]].begin, placed[run[-1]].end
            edges = [(edge - base) // dtype.part for n in run for edge in (placed[n].begin, placed[n].end)][:-1]
            for number, seen in zip(run, many_extremes(_aligned(buffer[base:end]), dtype, edges), strict=True):
                if seen.finite:
                    results[number] = TensorScan(placed[number].tensor, seen.low, seen.high)
    for number, item in enumerate(placed):
        if number not in results:
            tally = TensorTally(item.tensor)
            tally.look(_aligned(buffer[item.begin : item.end]), 0)
            results[number] = tally.result()
    return [results[number] for number in range(len(placed))]


def _aligned(data: Bytes) -> Bytes:
    """numpy reads values at odd addresses slowly, and small tensors lie anywhere."""
    return data if data.ctypes.data % 8 == 0 else data.copy()


def _runs(placed: Sequence[Placed], dtype: DType) -> Iterator[list[int]]:
    """Numbers of tensors of one dtype that ascend without overlap and lie a whole number of values apart."""
    if dtype.nan is not None:
        return
    run: list[int] = []
    for number, item in enumerate(placed):
        if item.tensor.dtype != dtype:
            continue
        if run and (item.begin < placed[run[-1]].end or (item.begin - placed[run[0]].begin) % dtype.part):
            yield run
            run = []
        run.append(number)
    if run:
        yield run


def look_at_view(extent: Extent, tensor: StoredTensor) -> TensorScan | None:
    """Count a view with gaps or overlaps exactly: what lies between its elements is not its own.

    Repeated elements (a stride of 0) are counted once. `None` if the file became shorter meanwhile.
    """
    axes = [(size, step) for size, step in zip(tensor.shape, tensor.stride, strict=True) if size > 1 and step > 0]
    axes.sort(key=lambda axis: -axis[1])
    total = TensorTally(tensor)
    if math.prod(size for size, _ in axes) > 8 * tensor.span:
        axes = [(tensor.span, 1)]  # so much overlap that every element between is its own
    itemsize = tensor.dtype.itemsize
    for first, block in _blocks(0, axes, _BLOCK_BYTES // itemsize):
        span = 1 + sum((size - 1) * step for size, step in block)
        offset = extent.offset + tensor.offset + first * itemsize
        data = np.frombuffer(extent.source.read(offset, span * itemsize), np.uint8)
        if len(data) < span * itemsize:
            return None
        items = np.lib.stride_tricks.as_strided(
            data, (*(size for size, _ in block), itemsize), (*(step * itemsize for _, step in block), 1)
        )
        tally = TensorTally(tensor)
        tally.look(np.ascontiguousarray(items).reshape(-1), 0)
        if tally.first is not None:
            index = np.unravel_index(tally.first, tuple(size for size, _ in block))
            tally.first = first + sum(int(i) * step for i, (_, step) in zip(index, block, strict=True))
        total.add(tally)
    return total.result()


def _blocks(first: int, axes: list[tuple[int, int]], most: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Cut a view into blocks that span at most `most` elements: where each begins, and its axes."""
    span = 1 + sum((size - 1) * step for size, step in axes)
    if span <= most or not axes:
        yield first, axes
        return
    (size, step), inner = axes[0], axes[1:]
    inner_span = 1 + sum((s - 1) * t for s, t in inner)
    if inner_span > most:
        for number in range(size):
            yield from _blocks(first + number * step, inner, most)
        return
    at_once = max(1, (most - inner_span) // step + 1)
    for number in range(0, size, at_once):
        yield first + number * step, [(min(at_once, size - number), step), *inner]


# ---- values by their bits


_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_FLOATS = {4: np.float32, 8: np.float64}
_ROOT_BITS = {4: int(np.float32(1.8e19).view(np.uint32)), 8: int(np.float64(1.8e19).view(np.uint64))}


class Extremes(NamedTuple):
    """The least and the greatest value of a chunk, and whether everything in it is finite."""

    low: float
    high: float
    finite: bool


def extremes(data: Bytes, dtype: DType) -> Extremes:
    """Check the values in `data`, which holds at least one. Exact whether they are finite; fast.

    Where something is not finite, `low` and `high` are of no use: `count` gives those of the finite values.
    """
    bits = data.view(_UNSIGNED[dtype.part])
    if dtype.nan is not None:
        return _extremes_of_bytes(bits, dtype)
    top, sign = int(bits.max()), 1 << (8 * dtype.part - 1)
    most = int(bits.view(_SIGNED[dtype.part]).max()) if top >= sign else top
    finite = (top & (sign - 1)) < dtype.limit and most < dtype.limit
    if not finite:
        return Extremes(math.nan, math.nan, finite=False)
    if top < sign:  # nothing is negative
        return Extremes(value_of(int(bits.min()), dtype), value_of(most, dtype), finite=True)
    if most < 0:  # nothing is positive: the least magnitude is the greatest value
        most = int(bits.min())
    return Extremes(value_of(top, dtype), value_of(most, dtype), finite=True)


def are_moderate(data: Bytes, dtype: DType, *, positive: bool) -> bool:
    """Whether all values are certainly finite and below `SQUARE_OVERFLOWS`, and not negative if `positive`. One pass.

    False says nothing: look closer. The sum of the squares is at least the greatest square, and NaN and infinity go
    through it.
    """
    if dtype.name not in ("float32", "float64"):
        return False
    values = data.view(_FLOATS[dtype.part])
    if positive:
        return int(data.view(_UNSIGNED[dtype.part]).max()) < _ROOT_BITS[dtype.part]
    return float(np.dot(values, values)) < LARGEST["float32"]


def _extremes_of_bytes(bits: NDArray[np.unsignedinteger], dtype: DType) -> Extremes:
    if bool((bits == dtype.nan).any()):
        return Extremes(math.nan, math.nan, finite=False)
    present = np.flatnonzero(np.bincount(bits, minlength=256))
    values = [value_of(int(pattern), dtype) for pattern in present]
    return Extremes(min(values), max(values), finite=True)


def many_extremes(data: Bytes, dtype: DType, edges: list[int]) -> list[Extremes]:
    """The extremes of each stretch between two edges, which are counted in floats; every second stretch is a gap."""
    bits = data.view(_UNSIGNED[dtype.part])
    signed = bits.view(_SIGNED[dtype.part])
    tops, bottoms = np.maximum.reduceat(bits, edges)[::2].tolist(), np.minimum.reduceat(bits, edges)[::2].tolist()
    mosts = np.maximum.reduceat(signed, edges)[::2].tolist()
    sign = 1 << (8 * dtype.part - 1)
    found = []
    for top, bottom, most in zip(tops, bottoms, mosts, strict=True):
        if (top & (sign - 1)) >= dtype.limit or most >= dtype.limit:
            found.append(Extremes(math.nan, math.nan, finite=False))
        else:
            low = value_of(bottom if top < sign else top, dtype)
            found.append(Extremes(low, value_of(most if most >= 0 else bottom, dtype), finite=True))
    return found


class Counts(NamedTuple):
    """How many values are what; `first` is the position of the first that is not finite, in values."""

    nan: int
    posinf: int
    neginf: int
    first: int
    low: float
    high: float


def count(data: Bytes, dtype: DType) -> Counts:
    """Count exactly. Called only for a chunk in which something is not finite. A complex value counts once."""
    bits = data.view(_UNSIGNED[dtype.part])
    sign = 1 << (8 * dtype.part - 1)
    if dtype.nan is not None:
        nan = bits == dtype.nan
        infinite = np.zeros_like(nan)
        magnitude = bits
    else:
        magnitude = bits & bits.dtype.type(sign - 1)
        nan = magnitude > dtype.limit if dtype.infinity else magnitude >= dtype.limit
        infinite = (magnitude == dtype.limit) & dtype.infinity
    negative = bits >= sign
    bad = nan | infinite
    good = bits[~bad]
    low, high = math.inf, -math.inf
    if len(good):
        inside = extremes(good.view(np.uint8), dtype)
        low, high = inside.low, inside.high
    if dtype.kind == "complex":
        nan, bad = nan.reshape(-1, 2).any(axis=1), bad.reshape(-1, 2).any(axis=1)
        neg = (infinite & negative).reshape(-1, 2).any(axis=1) & ~nan
        pos = bad & ~nan & ~neg
    else:
        neg, pos = infinite & negative, infinite & ~negative
    return Counts(int(nan.sum()), int(pos.sum()), int(neg.sum()), int(bad.argmax()), low, high)


def value_of(bits: int, dtype: DType) -> float:
    """The number that a pattern of bits is."""
    if dtype.part == 1:
        return byte_values(dtype.name)[bits]
    if dtype.name == "bfloat16":
        return value_of(bits << 16, DTYPES["float32"])
    layout = {2: "<e", 4: "<f", 8: "<d"}[dtype.part]
    value: float = struct.unpack(layout, bits.to_bytes(dtype.part, "little"))[0]
    return value


@functools.cache
def byte_values(name: str) -> tuple[float, ...]:
    """All 256 numbers of a float8. The format's name says its bits: e5m2 has 5 of exponent and 2 of mantissa."""
    if name == "float8_e8m0fnu":
        return (*(2.0 ** (bits - 127) for bits in range(255)), math.nan)
    exponent_bits, mantissa_bits = int(name[8]), int(name[10])
    bias = (1 << (exponent_bits - 1)) - (0 if name.endswith("uz") else 1)
    dtype = DTYPES[name]
    values = []
    for bits in range(256):
        exponent, mantissa = (bits & 0x7F) >> mantissa_bits, bits & ((1 << mantissa_bits) - 1)
        if exponent:
            value = (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)
        else:
            value = mantissa / (1 << mantissa_bits) * 2.0 ** (1 - bias)
        if dtype.nan == bits or (dtype.limit and (bits & 0x7F) > dtype.limit - (not dtype.infinity)):
            value = math.nan
        elif dtype.infinity and dtype.limit and (bits & 0x7F) == dtype.limit:
            value = math.inf
        values.append(-value if bits & 0x80 else value)
    return tuple(values)
