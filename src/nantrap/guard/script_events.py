"""What a script did by itself: the kinds of such events, one table that counts them, and what is said of them.

`event_detector` notices events, and makes incidents of those with a non-finite value. The table prints a line when
events of a kind become many, and gives the lines of the summary at the end.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nantrap.incident.wording import some_of
from nantrap.thresholds import DEAD_AFTER

_SEVERAL = 5
"""Steps in a row that a script does not make, after which a line says so."""
_OFTEN = 3
_MOST_SAMPLES = 1000


class EventKind(enum.Enum):
    """What a script did by itself, in the order in which the summary says it."""

    DATA_CLEANED = "replaced non-finite data by numbers (`nan_to_num`)"
    STEP_NOT_MADE = "made no step from a loss or a batch that is not finite"
    LEFT_OUT = "made a step without a loss or gradients that are not finite"
    MICRO_BATCH_LEFT_OUT = "left a micro-batch out of a step"
    VALUE_USED = "used a value that is not finite, and no optimizer makes a step from it"
    NOT_CLEARED = "added the gradients of a step to those of the step before"
    STEP_REPEATED = "made a step a second time with the same gradients"
    BUFFERS_RESTORED = "ran a forward pass that left non-finite values in buffers"


@dataclass(frozen=True, slots=True)
class ScriptEvent:
    """Something that a script did by itself.

    Attributes:
        kind: what it did.
        words: the same in words, for its incident; where there is none, what the printed line adds.
        step: of the optimizer, when the script did it.
        applied: how many steps had been applied by then. Events between which no step is applied are in a row.
        samples: the dataset's indices of the samples, where they are known.
    """

    kind: EventKind
    words: str = ""
    step: int = 0
    applied: int = 0
    samples: tuple[int, ...] = ()


_SAID = {
    (EventKind.DATA_CLEANED, 1): (
        "the script replaces non-finite values of its data by nan_to_num: {words}; further ones are counted"
    ),
    (
        EventKind.STEP_NOT_MADE,
        _SEVERAL,
    ): "step {step:,}: the script skipped the last {number} steps itself; further skips are counted, not printed",
    (EventKind.STEP_NOT_MADE, DEAD_AFTER): (
        "step {step:,}: the script has skipped all {number} steps since step {first:,} itself: nothing is learned "
        "(NT505 dead_training)"
    ),
    (EventKind.NOT_CLEARED, _OFTEN): (
        "the gradients are not cleared between steps, so each step adds to all the ones before: "
        "call optimizer.zero_grad() before each backward pass (NT871 zero_grad_missing)"
    ),
    (EventKind.STEP_REPEATED, _OFTEN): (
        "optimizer.step() is called twice for each backward pass, so each update is made twice{words} "
        "(NT875 double_step)"
    ),
    (EventKind.BUFFERS_RESTORED, 1): (
        "step {step:,}: a forward pass left non-finite values in buffer {words}; they were restored. Further such "
        "passes are counted, not printed"
    ),
}
"""What is printed when this many events of a kind are in a row."""

_SAID_AT_THE_END = {
    EventKind.DATA_CLEANED: (1, "{number:,} {data} cleaned by the script with nan_to_num{indices}"),
    EventKind.STEP_NOT_MADE: (
        DEAD_AFTER,
        "the script skipped the last {number:,} steps itself: nothing was learned (NT505 dead_training)",
    ),
    EventKind.NOT_CLEARED: (
        _OFTEN,
        "the gradients were not cleared in the last {number:,} steps (NT871 zero_grad_missing)",
    ),
    EventKind.STEP_REPEATED: (_OFTEN, "{number:,} updates were made twice (NT875 double_step)"),
    EventKind.BUFFERS_RESTORED: (
        1,
        "forward passes after which non-finite buffers were restored: {number:,}",
    ),
}
"""From how many events in a row on the summary has a line, and the line."""


@dataclass(slots=True)
class _Row:
    """The events of one kind. Holds how many there were, and how many of them in a row."""

    count: int = 0
    in_a_row: int = 0
    applied: int = 0
    samples: dict[int, None] = field(default_factory=dict)
    has_unknown_samples: bool = False

    def add(self, event: ScriptEvent) -> None:
        """One more event."""
        self.count += 1
        self.in_a_row = self.in_a_row + 1 if event.applied == self.applied else 1
        self.applied = event.applied
        self.has_unknown_samples = self.has_unknown_samples or not event.samples
        if len(self.samples) < _MOST_SAMPLES:
            self.samples.update(dict.fromkeys(event.samples))

    def fill(self, text: str) -> str:
        """The line of the summary."""
        one, several = ("tensor", "tensors") if self.has_unknown_samples else ("batch", "batches")
        indices = f": {numbered('dataset index', list(self.samples), 'dataset indices')}" if self.samples else ""
        return text.format(number=self.in_a_row, data=one if self.in_a_row == 1 else several, indices=indices)


class EventTable:
    """Counts the events of a script: of one optimizer, or of the data that all of them share.

    Args:
        say: prints a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._rows = {kind: _Row() for kind in EventKind}

    def count(self, kind: EventKind) -> int:
        """How often the script did this."""
        return self._rows[kind].count

    def note(self, event: ScriptEvent) -> None:
        """Count an event, and print what it means if that is due."""
        row = self._rows[event.kind]
        row.add(event)
        number = row.in_a_row
        text = _SAID.get((event.kind, number))
        if text is not None:
            first = event.step - number + 1
            self._say(text.format(words=event.words, step=event.step, number=number, first=first))

    def end_row(self, kind: EventKind) -> None:
        """The script did not do it this time: the next event is the first of a new row."""
        self._rows[kind].in_a_row = 0

    def lines(self, *, applied: int = 0) -> list[str]:
        """What the summary says of a run in which this many steps were applied."""
        found = []
        for kind, (least, text) in _SAID_AT_THE_END.items():
            row = self._rows[kind]
            has_ended = kind is EventKind.STEP_NOT_MADE and row.applied != applied
            if row.in_a_row >= least and not has_ended:
                found.append(row.fill(text))
        return found


def numbered(noun: str, numbers: Sequence[int], several: str = "") -> str:
    """`sample 4`, `samples 4, 7`."""
    return f"{noun if len(numbers) == 1 else several or noun + 's'} {some_of([str(each) for each in numbers])}"
