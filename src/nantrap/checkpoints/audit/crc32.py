"""CRC-32 by the fastest function at hand, and of two pieces put together from that of each.

The package `deflate` (`pip install nantrap[fast]`) uses the carry-less multiplication of the processor, which the zlib
of most Pythons does not.
"""

from __future__ import annotations

import functools
import importlib
import zlib
from collections.abc import Callable
from typing import Final

_POLYNOMIAL = 0xEDB88320  # in zlib's order of bits: the highest power is the lowest bit


def _fastest() -> Callable[..., int]:
    try:
        return importlib.import_module("deflate").crc32  # type: ignore[no-any-return]
    except ImportError:
        return zlib.crc32


crc32: Final = _fastest()
"""CRC-32 of bytes, and of what follows bytes with a known one."""


def combine(first: int, second: int, second_size: int) -> int:
    """The CRC-32 of two pieces put together, from the CRC-32 of each."""
    return _times(_power_of_x(8 * second_size), first) ^ second


def _times(a: int, b: int) -> int:
    """The product of two polynomials modulo that of CRC-32."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


@functools.lru_cache(maxsize=64)
def _power_of_x(exponent: int) -> int:
    """x to the power of `exponent`, modulo the same, by squaring."""
    result, square = 1 << 31, 1 << 30
    while exponent:
        if exponent & 1:
            result = _times(result, square)
        square = _times(square, square)
        exponent >>= 1
    return result
