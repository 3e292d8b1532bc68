"""Columns that grow: records (one dictionary per line) become numpy arrays a chunk at a time, and are then dropped.

A record may hold numbers, text, and objects or lists of them: `{"terms": {"ce": 1.0}}` is the column `terms.ce`, the
first entry of the list `lr` is the column `lr`, the second `lr.1`. A value that a record lacks is absent from its
column; a NaN or Inf, however it was spelt, is a value like any other and stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_MISSING: Any = type("Missing", (), {"__slots__": ()})()
_NUMBERS = frozenset({float, int, bool})
_MOST_ITEMS = 16
"""Entries of a list that become columns: parameter groups have a few, a histogram is not read."""
_MOST_COLUMNS = 2000
"""Columns of numbers, and of text. Twice as many names are looked at, objects that hold others included."""
_ALWAYS = frozenset({"step", "epoch", "loss", "grad_norm", "lr", "scale", "action", "incident"})
"""What a verdict is made of is read, however many names come before it."""
_WORDS = frozenset({"action", "by", "incident.cause", "incident.phase", "incident.module", "incident.op"})
"""Texts of a journal that stay texts: a part of `nn.Sequential` is called `0`."""
_MOST_NAMES = 10_000
"""Number of different texts that a column keeps; the rest is "...": a column of unique messages is no label."""
_SPELLINGS = re.compile(
    r"\s*(?P<sign>[-+]?)(?:(?P<nan>nan(?:\(\w*\))?|1\.#(?:qnan|ind|snan)\w*)|(?P<inf>inf(?:inity)?|1\.#inf\w*))\s*",
    re.I,
)


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One measured value over the steps: arrays of equal length, only where the value was written.

    Attributes:
        name: its name in the log.
        step: the step of each value.
        row: the row of each value in its series.
        value: the values; NaN and Inf are values.
    """

    name: str
    step: Ints
    row: Ints
    value: Floats

    def __len__(self) -> int:
        return len(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """A column of text. `names[code[i]]` is the text at `row[i]`."""

    name: str
    step: Ints
    row: Ints
    code: Ints
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.code)


class _Growing:
    """An array that grows at its end. Views that were returned stay valid: growing makes a new array."""

    __slots__ = ("_data", "size")

    def __init__(self, dtype: Any) -> None:
        self._data: NDArray[Any] = np.empty(64, dtype=dtype)
        self.size = 0

    def append(self, values: NDArray[Any]) -> None:
        end = self.size + len(values)
        if end > len(self._data):
            data = np.empty(max(end, len(self._data) * 3 // 2), dtype=self._data.dtype)
            data[: self.size] = self._data[: self.size]
            self._data = data
        self._data[self.size : end] = values
        self.size = end

    @property
    def view(self) -> NDArray[Any]:
        view = self._data[: self.size]
        view.flags.writeable = False
        return view


class _Cells:
    """The values of one column, and their rows as soon as a row lacks one."""

    __slots__ = ("_rows", "values")

    def __init__(self, dtype: Any) -> None:
        self.values = _Growing(dtype)
        self._rows: _Growing | None = None

    def dense(self, row: int) -> bool:
        """Whether every row before `row` has a value."""
        return self._rows is None and self.values.size == row

    def append(self, first_row: int, values: NDArray[Any], rows: Ints | None) -> None:
        """Add values from `first_row` on, in every row, or in `rows` counted from `first_row`."""
        if self._rows is None and (rows is not None or self.values.size != first_row):
            self._rows = _Growing(np.int64)
            self._rows.append(np.arange(self.values.size, dtype=np.int64))
        if self._rows is not None:
            own = np.arange(len(values), dtype=np.int64) if rows is None else rows
            self._rows.append(own + first_row)
        self.values.append(values)

    @property
    def rows(self) -> Ints:
        return np.arange(self.values.size, dtype=np.int64) if self._rows is None else self._rows.view


class Table:
    """Grows by records. Holds one array per column, and the texts seen.

    Args:
        wanted: whether to keep a column, by its name; all are kept by default.
    """

    def __init__(self, wanted: Callable[[str], bool] | None = None) -> None:
        self.rows = 0
        self._wanted = wanted
        self._numbers: dict[str, _Cells] = {}
        self._texts: dict[str, _Cells] = {}
        self._codes: dict[str, dict[str, int]] = {}
        self._names: set[str] = set()
        self.names_not_read = 0
        """Names of values beyond the limit. One that comes again in a later part of the log is counted again."""

    def _reads(self, name: str) -> bool:
        """Whether values of this name are read: each name costs a look at every record, so there is a limit."""
        if name in self._names or name in _ALWAYS:
            return True
        if len(self._names) >= 2 * _MOST_COLUMNS:
            self.names_not_read += 1
            return False
        self._names.add(name)
        return True

    @property
    def numeric(self) -> tuple[str, ...]:
        """Names of the columns of numbers, in the order in which they appeared."""
        return tuple(self._numbers)

    @property
    def textual(self) -> tuple[str, ...]:
        """Names of the columns of text."""
        return tuple(self._texts)

    def numbers(self, name: str) -> tuple[Ints, Floats]:
        """Rows and values of a column of numbers."""
        cells = self._numbers[name]
        return cells.rows, cells.values.view

    def texts(self, name: str) -> tuple[Ints, Ints, tuple[str, ...]]:
        """Rows, codes and the texts of the codes."""
        cells = self._texts[name]
        return cells.rows, cells.values.view, tuple(self._codes[name])

    def extend(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Add one row for each record."""
        for key in dict.fromkeys(key for record in _shapes(records) for key in record):
            name = str(key)
            if (self._wanted is None or self._wanted(name)) and self._reads(name):
                self._add(name, [record.get(key, _MISSING) for record in records], None)
        self.rows += len(records)

    def _cells(self, kind: dict[str, _Cells], name: str, dtype: Any) -> _Cells:
        cells = kind.get(name)
        if cells is None:
            cells = kind[name] = _Cells(dtype)
        return cells

    def _add(self, name: str, values: list[Any], rows: Ints | None) -> None:
        """Values of one name: `rows`: the rows that have one; `None` for all rows."""
        kinds = set(map(type, values))
        null_is_nan = type(None) in kinds and self._null_is_nan(name, values[0])
        if type(_MISSING) in kinds or (type(None) in kinds and not null_is_nan):
            here = [i for i, value in enumerate(values) if value is not _MISSING and (null_is_nan or value is not None)]
            if not here:
                return
            values = [values[i] for i in here]
            rows = np.asarray(here, dtype=np.int64) if rows is None else rows[here]
            kinds = set(map(type, values))
        if kinds <= _NUMBERS or kinds <= _NUMBERS | {type(None)}:
            self._append(name, _floats(values), rows)
        elif kinds == {str}:
            self._add_texts(name, values, rows)
        elif kinds == {dict}:
            for key in dict.fromkeys(key for value in _shapes(values) for key in value):
                if self._reads(f"{name}.{key}"):
                    self._add(f"{name}.{key}", [value.get(key, _MISSING) for value in values], rows)
        elif kinds == {list}:
            for i in range(min(_MOST_ITEMS, max(map(len, values)))):
                entries = [value[i] if i < len(value) else _MISSING for value in values]
                self._add(name if i == 0 else f"{name}.{i}", entries, rows)
        else:  # a field that changes its type from line to line, a loss that becomes "nan" above all
            values = [_plain(value) for value in values]
            every = np.arange(len(values), dtype=np.int64) if rows is None else rows
            for kind in ((float, int, bool, type(None)), (str,), (dict,)):
                here = [i for i, value in enumerate(values) if type(value) in kind]
                if here:
                    self._add(name, [values[i] for i in here], every[here])

    def _null_is_nan(self, name: str, first: Any = None) -> bool:
        """Some loggers write NaN as null. Where every row so far has a number, a null is one that is not finite."""
        cells = self._numbers.get(name)
        if cells is None:
            return self.rows == 0 and type(first) in _NUMBERS
        return cells.dense(self.rows)

    def _add_texts(self, name: str, values: list[str], rows: Ints | None) -> None:
        """Add values of text: those that are numbers to the numbers, the others to the texts while there is room."""
        is_number = name not in _WORDS and (name in self._numbers or _spelt(values[0]) is not None)
        numbers = [_spelt(value) for value in values] if is_number else []
        if numbers and all(number is not None for number in numbers):
            self._append(name, _floats(numbers), rows)
            return
        if any(number is not None for number in numbers):
            every = np.arange(len(values), dtype=np.int64) if rows is None else rows
            here = [i for i, number in enumerate(numbers) if number is not None]
            self._append(name, _floats([numbers[i] for i in here]), every[here])
            rest = [i for i, number in enumerate(numbers) if number is None]
            values, rows = [values[i] for i in rest], every[rest]
        if self._has_room_for_text(name):
            self._cells(self._texts, name, np.int32).append(self.rows, self._coded(name, values), rows)

    def _has_room_for_text(self, name: str) -> bool:
        return len(self._texts) < _MOST_COLUMNS or name in self._texts

    def _coded(self, name: str, values: Sequence[str]) -> Ints:
        """The code of each text of a column; a new text gets a new one while there is room."""
        codes = self._codes.setdefault(name, {})
        for value in dict.fromkeys(values):
            if value not in codes and len(codes) < _MOST_NAMES:
                codes[value] = len(codes)
        other = codes.setdefault("...", len(codes)) if any(value not in codes for value in set(values)) else 0
        return np.fromiter((codes.get(value, other) for value in values), dtype=np.int64, count=len(values))

    def _append(self, name: str, values: Floats, rows: Ints | None) -> None:
        if name in self._numbers or name in _ALWAYS or len(self._numbers) < _MOST_COLUMNS:
            self._cells(self._numbers, name, np.float64).append(self.rows, values, rows)


def _shapes(records: Sequence[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """The records that may bring new keys: most lines of a log have those of the line before."""
    previous: Any = ()
    for record in records:
        keys = record.keys()
        if keys != previous:
            previous = keys
            yield record


def _floats(values: Sequence[Any]) -> Floats:
    try:
        return np.array(values, dtype=np.float64)  # None becomes NaN
    except OverflowError:  # a whole number that no float can hold
        return np.array([_float(value) for value in values], dtype=np.float64)


def _float(value: Any) -> float:
    try:
        return np.nan if value is None else float(value)
    except OverflowError:
        return np.inf if value > 0 else -np.inf


def _plain(value: Any) -> Any:
    """A number, also where it was written as text or as a list of one; anything else unchanged."""
    if type(value) is list and value:
        value = value[0]
    if type(value) is str:
        number = _spelt(value)
        return value if number is None else number
    return value


def _spelt(text: str) -> float | None:
    """A number that was written as text, or as one of the many spellings of NaN and Inf; `None` if it is none."""
    if match := _SPELLINGS.fullmatch(text):
        return float("nan") if match["nan"] else float(f"{match['sign']}inf")
    try:
        return float(text)
    except ValueError:
        return None
