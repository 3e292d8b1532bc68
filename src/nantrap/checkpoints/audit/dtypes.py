"""The dtypes of checkpoints, read by their bits: numpy has no bfloat16 and no float8, and torch is slow to import.

Almost every float is a sign and a magnitude, and magnitudes are in the order of their bits. So two reductions over
integers show everything about a chunk: the greatest signed integer is the greatest positive value, the greatest
unsigned integer the most negative one, and whatever is not finite lies at or above the bits of infinity.
"""

from __future__ import annotations

import functools
import math
import struct
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from nantrap.thresholds import LARGEST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]


class DType(NamedTuple):
    """A dtype by its bits.

    Attributes:
        name: as torch calls it.
        itemsize: bytes of one value.
        kind: `float` and `complex` can hold NaN; `raw` is bytes whose meaning is not known.
        part: bytes of one float: half of a complex number.
        limit: the least magnitude that is not finite, as an integer; 0 where every pattern is a number.
        infinity: whether the pattern at `limit` is an infinity. Above it is NaN.
        nan: the only NaN, where it is not a magnitude: the `fnuz` float8 have it in place of minus zero.
        largest: the greatest finite value.
    """

    name: str
    itemsize: int
    kind: Literal["float", "complex", "integer", "raw"] = "integer"
    part: int = 0
    limit: int = 0
    infinity: bool = True
    nan: int | None = None
    largest: float = 0.0

    @property
    def has_nan(self) -> bool:
        """Whether a value can be anything but finite."""
        return self.limit > 0 or self.nan is not None


def _float(name: str, size: int, limit: int, largest: float) -> DType:
    return DType(name, size, "float", size, limit, largest=largest)


def _complex(name: str, part: DType) -> DType:
    return DType(name, 2 * part.itemsize, "complex", part.itemsize, part.limit, largest=part.largest)


_F16 = _float("float16", 2, 0x7C00, LARGEST["float16"])
_F32 = _float("float32", 4, 0x7F80_0000, LARGEST["float32"])
_F64 = _float("float64", 8, 0x7FF0_0000_0000_0000, LARGEST["float64"])

DTYPES: Final[dict[str, DType]] = {
    dtype.name: dtype
    for dtype in (
        _F16, _F32, _F64, _complex("complex32", _F16), _complex("complex64", _F32), _complex("complex128", _F64),
        _float("bfloat16", 2, 0x7F80, LARGEST["bfloat16"]),
        _float("float8_e5m2", 1, 0x7C, LARGEST["float8_e5m2"]),
        DType("float8_e4m3fn", 1, "float", 1, 0x7F, infinity=False, largest=LARGEST["float8_e4m3fn"]),
        DType("float8_e4m3fnuz", 1, "float", 1, nan=0x80, largest=240.0),
        DType("float8_e5m2fnuz", 1, "float", 1, nan=0x80, largest=57344.0),
        DType("float8_e8m0fnu", 1, "float", 1, nan=0xFF, largest=2.0**127),
        DType("float4_e2m1fn_x2", 1),
        *(DType(f"{sign}int{bits}", bits // 8) for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *(DType(f"{sign}int{bits}", 1) for sign in ("", "u") for bits in range(1, 8)),
        *(DType(name, size) for name, size in (("qint8", 1), ("quint8", 1), ("qint32", 4), ("bool", 1))),
        *(DType(name, 1) for name in ("quint4x2", "quint2x4", "bits8", "bits1x8", "bits2x4", "bits4x2")),
        DType("bits16", 2),
        DType("bytes", 1, "raw"),
    )
}  # fmt: skip
"""By torch's name."""

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
    return float(np.dot(values, values)) < _F32.largest


def _extremes_of_bytes(bits: NDArray[np.unsignedinteger], dtype: DType) -> Extremes:
    if bool((bits == dtype.nan).any()):
        return Extremes(math.nan, math.nan, finite=False)
    present = np.flatnonzero(np.bincount(bits, minlength=256))
    values = [value_of(int(pattern), dtype) for pattern in present]
    return Extremes(min(values), max(values), finite=True)


def many_extremes(data: Bytes, dtype: DType, edges: list[int]) -> list[Extremes]:
    """The same for each stretch between one edge and the next, counted in floats; every second stretch is a gap."""
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
        return _byte_values(dtype.name)[bits]
    if dtype.name == "bfloat16":
        return value_of(bits << 16, _F32)
    layout = {2: "<e", 4: "<f", 8: "<d"}[dtype.part]
    value: float = struct.unpack(layout, bits.to_bytes(dtype.part, "little"))[0]
    return value


@functools.cache
def _byte_values(name: str) -> tuple[float, ...]:
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
