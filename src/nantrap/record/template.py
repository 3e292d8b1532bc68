"""The fast way through a journal: lines of one shape are read together, without a dictionary for each.

Nearly all lines of a log differ in their numbers alone. What is between the numbers of one line must be the same in the
others. Then every line has the same number of commas and brackets, and those behind the numbers are at the same place
among them: one search for these signs finds all numbers of all lines. Lines of another shape are left to the JSON
decoder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nantrap.record.columns import ColumnBlock

# ---- Decimal numbers out of text, many at a time: the same bits as `float` gives, at a fraction of its time.
#
# A number `-12.375e-4` is a whole number (12375), a sign, and a power of ten (-7). The digits are read eight at a time,
# as one 64-bit word: subtract `0` from each byte, then add neighbours in pairs (ones and tens, then hundreds, then ten
# thousands), which takes three multiplications. Whole number and power of ten give the value in one of three ways:
#
# 1. Below 2**53, with a power of at most 22, both are exact in float64, and one division rounds correctly.
# 2. Below 2**64, with a power of at most 27, both are exact in the wider float of x86 (64 bits) or ARM (113 bits). Its
#    quotient is rounded twice. That is wrong only if the first rounding ends exactly half-way between two float64
#    values: these few are read again by 3.
# 3. Anything else (more digits, larger powers, NaN and Inf) is read one after the other by `float`.

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


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|-?\b(?:NaN|Infinity)\b')
_NEWLINE = ord("\n")
_ENDS = b",]}"
_AFTER = (b",", b"]", b"}")
"""What follows a number; a space does not, so that the end of a number is where one of these is."""
_NONFINITE = ('"nan"', '"inf"', '"-inf"')
_MOST_GROUPS = 64


@dataclass(frozen=True, slots=True)
class Template:
    """The shape of a line.

    Attributes:
        between: what is before, between and behind the numbers: one more than there are numbers.
        names: the name of each number; `None` for one that is not wanted.
        texts: the texts of the line, by name.
    """

    between: tuple[bytes, ...]
    names: tuple[str | None, ...]
    texts: dict[str, str]

    def read(self, text: bytes, lines: int) -> tuple[ColumnBlock, Bools, list[bytes]]:
        """The lines of this shape as one block, which of the lines these are, and the other lines."""
        data = np.frombuffer(b"".join((b"\n" * MARGIN, text, b"\n" * MARGIN)), dtype=np.uint8)
        line_end = np.flatnonzero(data == _NEWLINE)[MARGIN : MARGIN + lines]
        line = np.append(MARGIN, line_end[:-1] + 1)
        ends = np.flatnonzero((data == _ENDS[0]) | (data == _ENDS[1]) | (data == _ENDS[2]))
        in_piece = [sum(piece.count(bytes([sign])) for sign in _ENDS) for piece in self.between]
        fits = np.ones(lines, dtype=bool)
        if len(ends) != lines * sum(in_piece):
            before = np.searchsorted(ends, line_end)
            number = np.diff(before, prepend=0)
            fits = number == sum(in_piece)
            ends = ends[np.repeat(fits, number)]
        which = np.flatnonzero(fits)
        found, good = self._located(data, line[which], line_end[which], ends.reshape(-1, sum(in_piece)), in_piece)
        which, found = which[good], [(start[good], end[good]) for start, end in found]
        names: list[str] = []
        values = np.empty((len(self.names), len(which)))
        readable = np.ones(len(which), dtype=bool)
        for name, (start, end) in zip(self.names, found, strict=True):
            if name is not None:
                values[len(names)], fine = read_decimals(data, start, end)
                readable &= fine
                names.append(name)
        fits[:] = False
        fits[which[readable]] = True
        others = [data[line[i] : line_end[i]].tobytes() for i in np.flatnonzero(~fits).tolist()]
        return ColumnBlock(tuple(names), values[: len(names), readable].T, self.texts), fits, others

    def _located(
        self, data: Bytes, line: Places, line_end: Places, ends: Places, in_piece: Sequence[int]
    ) -> tuple[list[tuple[Places, Places]], Bools]:
        """Where each number begins and ends, an array over the lines for each, and which lines have this shape.

        A line of another shape may have as many ends as this one. It fails here, because what is between its numbers
        differs, or when its numbers are read, because a number has no comma and no bracket in it.
        """
        found, position, good = [], line, np.ones(len(line), dtype=bool)
        for piece, at in zip(self.between, np.cumsum(in_piece[:-1]).tolist(), strict=False):
            start, end = position + len(piece), ends[:, at]
            good &= _is_at(data, position, piece) & (start < end)
            found.append((start, end))
            position = end
        good &= _is_at(data, position, self.between[-1]) & (position + len(self.between[-1]) == line_end)
        return found, good


def template_of(line: str, wanted: Callable[[str], bool] | None = None) -> Template | None:
    """The template of a line, or `None` if the line is not of the simple kind: numbers, texts, objects and lists."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or "kind" in record or "event" in record:
        return None
    names: list[str] = []
    texts: dict[str, str] = {}
    if not all(_leaves(key, value, names, texts) for key, value in record.items()):
        return None
    if not names or len(names) > _MOST_GROUPS or len(set(names)) != len(names):
        return None
    between = tuple(_between(line))
    if len(between) != len(names) + 1 or any(piece[:1] not in _AFTER for piece in between[1:]):
        return None
    kept = tuple(name if wanted is None or wanted(name) else None for name in names)
    return Template(between, kept, texts) if any(name is not None for name in kept) else None


def _is_at(data: Bytes, places: Places, piece: bytes) -> Bools:
    """At which of the places these bytes are. Eight are compared at a time; the last eight may overlap the others."""
    found = np.ones(len(places), dtype=bool)
    width = min(8, len(piece))
    if not width:
        return found
    view = np.ndarray((len(data) - width + 1,), dtype=f"V{width}", buffer=data, strides=(1,))
    kind = f"<u{width}" if width in (1, 2, 4, 8) else f"S{width}"
    for at in (*range(0, len(piece) - width, width), len(piece) - width):
        there = view[np.minimum(places + at, len(view) - 1)].view(kind)
        found &= there == np.frombuffer(piece[at : at + width], dtype=kind)
    return found


def _leaves(name: str, value: Any, names: list[str], texts: dict[str, str]) -> bool:
    """Collect the names of the numbers in the order of the text; False for what has no template."""
    if type(value) in (int, float) or value in ("nan", "inf", "-inf"):
        names.append(name)
        return True
    if isinstance(value, str):
        texts[name] = value
        return True
    if isinstance(value, dict):
        return all(_leaves(f"{name}.{key}", item, names, texts) for key, item in value.items())
    if isinstance(value, list) and len(value) <= 16:
        return all(_leaves(f"{name}.{i}" if i else name, item, names, texts) for i, item in enumerate(value))
    return False


def _between(line: str) -> Iterator[bytes]:
    """What is before, between and behind the numbers of a line."""
    position = 0
    for match in _TOKEN.finditer(line):
        token = match[0]
        is_key = token[0] == '"' and line[match.end() :].lstrip()[:1] == ":"
        if (token[0] != '"' or token in _NONFINITE) and not is_key:
            yield line[position : match.start()].encode()
            position = match.end()
    yield line[position:].encode()
