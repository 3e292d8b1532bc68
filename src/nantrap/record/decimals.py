"""Decimal numbers out of text, many at a time: the same bits as `float` gives, at a fraction of its time.

A number `-12.375e-4` is a whole number (12375), a sign, and a power of ten (-7). The digits are read eight at a time,
as one 64-bit word: subtract `0` from each byte, then add neighbours in pairs (ones and tens, then hundreds, then ten
thousands), which takes three multiplications. Whole number and power of ten give the value in one of three ways:

1. Below 2**53, with a power of at most 22, both are exact in float64, and one division rounds correctly.
2. Below 2**64, with a power of at most 27, both are exact in the wider float of x86 (64 bits) or ARM (113 bits). Its
   quotient is rounded twice. That is wrong only if the first rounding ends exactly half-way between two float64 values:
   these few are read again by 3.
3. Anything else (more digits, larger powers, NaN and Inf) is read one after the other by `float`.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]
Words = NDArray[np.uint64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MARGIN: Final = 32
"""Bytes that the text must have before the first number: words are read from the end of a number backwards."""

_DOT, _MINUS, _PLUS, _E = (ord(sign) for sign in ".-+e")
_ZEROS, _ABOVE_NINE, _HIGH_BITS = (np.uint64(byte * 0x0101010101010101) for byte in (0x30, 0x76, 0x80))
_FIRST_FIVE = np.uint64(0x000000FFFFFFFFFF)
_HUNDRED_MILLION = np.uint64(10**8)
_PAIRS = tuple(
    (np.uint64(factor), np.uint64(shift), np.uint64(mask))
    for factor, shift, mask in (
        (10 << 8 | 1, 8, 0x00FF00FF00FF00FF),
        (100 << 16 | 1, 16, 0x0000FFFF0000FFFF),
        (10_000 << 32 | 1, 32, 0x00000000FFFFFFFF),
    )
)
_MASKS = np.array([(2**64 - 1) << 8 * (8 - k) & (2**64 - 1) for k in range(9)], dtype=np.uint64)
_TENS = np.array([10**k for k in range(20)], dtype=np.uint64)
_FLOAT_TENS = np.array([10.0**k for k in range(23)])
_EXACT = np.uint64(2**53)
_SLOW = re.compile(rb'-?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|NaN|Infinity)|"(?:nan|inf|-inf)"')


def _wide_tens() -> NDArray[np.longdouble] | None:
    """Powers of ten up to 10**27 in the wider float; `None` on machines and emulators without one."""
    if np.longdouble(1) + np.longdouble(2) ** -63 == 1:
        return None
    powers = [np.longdouble(1)]
    for _ in range(27):  # each is exact: 5**27 is below 2**63
        powers.append(powers[-1] * 10)
    return np.array(powers)


_WIDE_TENS = _wide_tens()


def read_decimals(text: Bytes, start: Places, end: Places) -> tuple[Floats, Bools]:
    """The numbers in `text[start[i]:end[i]]`, and for each whether it is one as JSON or a journal has it.

    Args:
        text: the bytes, with `MARGIN` bytes before the first number.
        start: where each number begins.
        end: where each ends (exclusive).
    """
    negative = text[start] == _MINUS
    first = start + negative
    last, exponent, fine = _exponents(text, first, end)
    dot = _dots(text, first, last)
    whole, good = _digits(text, first, dot, words=2)
    fine &= good & (dot > first)
    behind = np.minimum(dot + 1, last)
    places = last - behind
    if places.any():
        fraction, good = _digits(text, behind, last, words=3)
        # whole and fraction together stay below 2**64: 18 digits, or a fraction alone, which is below 10**19
        fine &= good & ((whole == 0) | (dot - first + places <= 18))
        whole = whole * _TENS[np.minimum(places, 19)] + fraction
    values, good = _scaled(whole, exponent - places)
    fine &= good
    np.negative(values, where=negative, out=values)
    for i in np.flatnonzero(~fine).tolist():
        token = text[start[i] : end[i]].tobytes()
        if _SLOW.fullmatch(token) is not None:
            values[i], fine[i] = float(token.strip(b'"')), True
    return values, fine


def _exponents(text: Bytes, first: Places, end: Places) -> tuple[Places, Places, Bools]:
    """Where the digits of each number end, its power of ten, and whether that could be read: `e5`, `e-05`, `e+100`."""
    last, power, fine = end.copy(), np.zeros_like(end), np.ones(len(end), dtype=bool)
    for back in (2, 3, 4, 5):
        at = np.flatnonzero(((text[end - back] | 0x20) == _E) & (end - back > first))
        if len(at):
            mark = end[at] - back
            sign = text[mark + 1]
            signed = (sign == _MINUS) | (sign == _PLUS)
            number, good = _digits(text, mark + 1 + signed, end[at], words=1)
            power[at] = np.where(sign == _MINUS, -1, 1) * number.astype(np.int64)
            last[at], fine[at] = mark, good & (end[at] - mark - signed > 1)
    return last, power, fine


def _dots(text: Bytes, first: Places, last: Places) -> Places:
    """Where the point of each number is; its end if it has none."""
    dot = first + 1
    other = np.flatnonzero(text[dot] != _DOT)  # most numbers have one digit before the point
    if len(other):
        every = np.append(np.flatnonzero(text == _DOT), len(text))
        dot[other] = every[np.searchsorted(every, first[other])]
    return np.minimum(dot, last)


def _digits(text: Bytes, first: Places, last: Places, *, words: int) -> tuple[Words, Bools]:
    """The whole numbers in `text[first:last]`, and which of them have digits alone, not too many, and fit."""
    length = last - first
    total, fine = np.zeros(len(first), dtype=np.uint64), length <= 8 * words
    # a word at every byte of the text; numpy copies the bytes of a void without asking for their alignment
    view = np.ndarray((len(text) - 7,), dtype="V8", buffer=text, strides=(1,))
    for word in range(words):
        before = 8 * (words - 1 - word)  # digits behind this word
        kept = np.clip(length - before, 0, 8)
        if word < words - 1 and not kept.any():
            continue
        digits = (view[last - before - 8].view("<u8").astype(np.uint64, copy=False) ^ _ZEROS) & _MASKS[kept]
        fine &= ((digits + _ABOVE_NINE) | digits) & _HIGH_BITS == 0
        if before == 16:
            fine &= digits & _FIRST_FIVE == 0  # at most 19 digits: below 2**64
        for factor, shift, mask in _PAIRS:
            digits = (digits * factor >> shift) & mask
        total = total * _HUNDRED_MILLION + digits
    return total, fine


def _scaled(whole: Words, power: Places) -> tuple[Floats, Bools]:
    """`whole * 10**power`, and which of them are correctly rounded."""
    size = np.abs(power)
    exact = (whole < _EXACT) & (size <= 22)
    tens = _FLOAT_TENS[np.minimum(size, 22)]
    number = whole.astype(np.float64)
    values = np.where(power < 0, number / tens, number * tens)
    if exact.all() or _WIDE_TENS is None:
        return values, exact
    rest = np.flatnonzero(~exact & (size <= 27))
    wide, tens_of_rest = whole[rest].astype(np.longdouble), _WIDE_TENS[size[rest]]
    wide = np.where(power[rest] < 0, wide / tens_of_rest, wide * tens_of_rest)
    rounded = wide.astype(np.float64)
    half = np.abs(np.spacing(rounded)) / 2
    away = np.abs(wide - rounded)
    # half of the smaller neighbour's distance too: below a power of two the values are twice as dense
    values[rest], exact[rest] = rounded, (away != half) & (away != half / 2)
    return values, exact
