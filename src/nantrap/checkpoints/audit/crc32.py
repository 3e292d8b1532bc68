"""CRC-32 several times faster than `zlib.crc32`, in numpy: by folding.

A CRC is the remainder of the bits, read as a polynomial, divided by a fixed polynomial P. Adding a multiple of P
changes nothing. x^130360 + x^24749 + 1 is such a multiple, and so are its squares, of which the fifth has the same
exponents times 32. Therefore a 32-bit word may be taken away and added (exclusive or) to the words 105,611 and 130,360
places behind it, and the CRC stays the same. Two passes of `bitwise_xor` over a whole block are faster than the table
look-ups of zlib, and what remains of any length is 130,360 words, for zlib to finish.

Trinomials of smaller degree exist. This one has the longest stride for its size, which makes few and long calls: each
releases the GIL and takes it again, and with two workers that was a quarter of the time.

Where zlib uses hardware or a faster method (zlib-ng, Apple's), it is faster and does all of it. So is the package
`deflate` where it is installed (`pip install nantrap[fast]`): it uses the carry-less multiplication of the processor.
"""

from __future__ import annotations

import functools
import importlib
import time
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]


def _fast_crc32() -> Callable[..., int] | None:
    try:
        return importlib.import_module("deflate").crc32  # type: ignore[no-any-return]
    except ImportError:
        return None


_FAST: Final = _fast_crc32()
crc32: Final[Callable[..., int]] = _FAST or zlib.crc32
"""CRC-32 of bytes, and of what follows bytes with a known one: the fastest function at hand for a single buffer."""

_FAR, _NEAR = 130_360, 130_360 - 24_749
_REST = _FAR * 4

ROOM = -(-_REST // 64) * 64
"""Bytes in front of each chunk that a `Checksum` needs for what earlier chunks left."""

_WORTHWHILE = 3 << 20
"""Below this many bytes, what zlib has to finish is too large a part."""

_NO_START = 0xFFFFFFFF  # lets zlib begin at zero instead of at all ones
_POLYNOMIAL = 0xEDB88320  # P in zlib's order of bits: the highest power is the lowest bit


class Checksum:
    """The CRC-32 of `size` bytes that come chunk by chunk into `buffer[ROOM:]`.

    `update` may destroy the chunk, so it must be the last to read it. Every chunk but the last has a multiple of 4
    bytes.
    """

    def __init__(self, buffer: Bytes, size: int) -> None:
        self._buffer = buffer
        self._folds = size >= _WORTHWHILE and _FAST is None and _folding_is_faster()
        self._begin = ROOM  # of what earlier chunks left, which ends at ROOM
        self._first = True
        self._tail = b""
        self._crc = 0

    def update(self, size: int) -> None:
        """Take in the first `size` bytes behind `ROOM`."""
        chunk = self._buffer[ROOM : ROOM + size]
        if not self._folds:
            self._crc = crc32(chunk.data, self._crc)
            return
        if self._first:
            chunk[:4] ^= 0xFF  # the same as to begin at all ones
            self._first = False
        whole = size - size % 4
        self._tail = chunk[whole:].tobytes()
        words = self._buffer[self._begin : ROOM + whole].view(np.uint32)
        rest = _fold(words).view(np.uint8)
        self._begin = ROOM - len(rest)
        self._buffer[self._begin : ROOM] = rest

    def value(self) -> int:
        """The CRC-32 of all chunks, the number zlib would give."""
        if self._folds:
            # The trinomial holds in steps of bytes as well, and leaves zlib a quarter.
            rest = _fold(self._buffer[self._begin : ROOM])
            return zlib.crc32(self._tail, zlib.crc32(rest.data, _NO_START))
        return self._crc


def _fold(units: NDArray[Any]) -> NDArray[Any]:
    """The last `_FAR` units, with all before them folded into them. In place."""
    end = max(0, len(units) - _FAR)
    for begin in range(0, end, _NEAR):
        block = units[begin : min(begin + _NEAR, end)]
        for distance in (_NEAR, _FAR):
            target = units[begin + distance : begin + distance + len(block)]
            np.bitwise_xor(target, block, out=target)
    return units[end:]


@functools.cache
def _folding_is_faster() -> bool:
    """Tried once, on a megabyte: it depends on the zlib that Python was built with, and on the processor."""
    units = np.zeros(1 << 18, np.uint32)
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        zlib.crc32(units.data)
        between = time.perf_counter()
        folded = len(units) - len(_fold(units))
        times.append((between - begin, (time.perf_counter() - between) * len(units) / folded))
    return min(fold for _, fold in times) < min(plain for plain, _ in times)


def combine(first: int, second: int, second_size: int) -> int:
    """The CRC-32 of two pieces put together, from the CRC-32 of each."""
    return _times(_power_of_x(8 * second_size), first) ^ second


def _times(a: int, b: int) -> int:
    """The product of two polynomials modulo P."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


@functools.lru_cache(maxsize=64)
def _power_of_x(exponent: int) -> int:
    """x to the power of `exponent`, modulo P, by squaring."""
    result, square = 1 << 31, 1 << 30
    while exponent:
        if exponent & 1:
            result = _times(result, square)
        square = _times(square, square)
        exponent >>= 1
    return result
