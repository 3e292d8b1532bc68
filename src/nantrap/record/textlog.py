"""Plain text logs by pattern: progress bars, `step 100 | loss 2.3 | lr 1e-4`, `key=value`, printed dictionaries.

A line counts as a record when it holds a measured value (a loss, an accuracy, a learning rate next to a step, ...). The
epoch and the step are taken from the lines that have them; steps that are counted from 0 in every epoch become one
count over the whole log. Lines that mention NaN or an error are kept as notes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nantrap.record.textline import Shape, Shapes, as_number

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_TROUBLE = re.compile(
    r"\b(?:nan|infs?|non-?finite|overflow(?:ed)?|diverged|error|traceback|exception|out of memory|killed|aborted)\b"
    r"|Error\b",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Note:
    """A line of a text log that reports a problem: NaN, overflow, an error."""

    step: int
    row: int
    line: int
    text: str


class TextLog:
    """Turns the lines of a text log into records. Holds the epoch and the step reached, and how steps are counted."""

    def __init__(self, *, most_notes: int = 1000) -> None:
        self.notes: list[Note] = []
        self.total_steps: int | None = None
        self.total_epochs: int | None = None
        self._most_notes = most_notes
        self._line = 0
        self._rows = 0
        self._epoch: float | None = None
        self._first_epoch: float | None = None
        self._offset = 0  # steps of the epochs before, where each epoch counts from its start
        self._count = -1  # the step as the log counts it
        self._epoch_of_count: float | None = None
        self._step: int | None = None
        self._shapes = Shapes()
        self._largest = 0  # the most steps that a progress bar has announced

    def records(self, lines: list[str]) -> list[dict[str, object]]:
        """The records among these lines, in order."""
        found = []
        for raw in lines:
            self._line += 1
            line = _ESCAPES.sub("", raw) if "\x1b" in raw or not raw.isprintable() else raw
            record = self._record(line)
            if record is not None:
                found.append(record)
                self._rows += 1
        return found

    def _record(self, line: str) -> dict[str, object] | None:
        """The values of a line of a text log; `None` for a line without any, which is noted if it reports trouble."""
        shape, numbers = self._shapes.read(line)
        if shape.epoch is not None or shape.count is not None:
            self._follow(shape, numbers)
        if not shape.is_record:
            if len(self.notes) < self._most_notes and _TROUBLE.search(line):
                self.notes.append(Note(self._step or 0, self._rows, self._line, line.strip()[:500]))
            return None
        record: dict[str, object] = {name: as_number(numbers[place]) for name, place in shape.values}
        if self._step is not None:
            record["step"] = self._step
        if self._epoch is not None and "epoch" not in record:
            record["epoch"] = self._epoch
        return record

    def _follow(self, shape: Shape, numbers: list[str]) -> None:
        """Keep count of epoch and step."""
        epoch = None if shape.epoch is None else _whole_or_not(numbers[shape.epoch])
        if epoch is not None:
            if self._first_epoch is None:
                self._first_epoch = epoch
            self._epoch = epoch
            if shape.epochs is not None:
                self.total_epochs = _count(numbers[shape.epochs])
        count = None if shape.count is None else _count(numbers[shape.count], shape.count_unit)
        total = None if shape.total is None else _count(numbers[shape.total], shape.total_unit)
        if count is None:
            return
        if total and epoch is None and total < self._largest:
            return  # the bar of an evaluation, or of the epochs, next to that of the steps
        self._largest = max(self._largest, total or 0)
        within = shape.within
        epoch_ended = (
            self._epoch is not None and self._epoch_of_count is not None and self._epoch > self._epoch_of_count
        )
        if epoch_ended and count <= self._count:
            within = True
            if not total:
                self._offset = (self._step or 0) + 1
        if total:
            whole = self._epoch is not None and self._epoch == int(self._epoch)
            if whole and (within or epoch_ended or self._epoch_of_count is None):
                assert self._epoch is not None
                self._offset = total * max(0, int(self._epoch) - (0 if self._first_epoch == 0 else 1)) if within else 0
            epochs = self.total_epochs if within and self._epoch is not None else 1
            self.total_steps = total * epochs if epochs else None
        self._count, self._epoch_of_count = count, self._epoch
        self._step = count + self._offset


def _whole_or_not(text: str) -> float | None:
    number = as_number(text)
    return number if isinstance(number, float) and 0 <= number < 1e9 else None


def _count(text: str, unit: int = 1) -> int | None:
    number = as_number(text)
    return int(number * unit) if isinstance(number, float) and 0 <= number < 1e15 else None
