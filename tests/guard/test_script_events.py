"""The table of what a script does by itself: when a line is printed, and what the summary says."""

from __future__ import annotations

import pytest

from nantrap.guard.script_events import EventKind, EventTable, ScriptEvent
from nantrap.thresholds import DEAD_AFTER


def skipped(step: int, *, applied: int = 0) -> ScriptEvent:
    return ScriptEvent(EventKind.STEP_NOT_MADE, "the script skipped this batch itself", step, applied)


def table() -> tuple[EventTable, list[str]]:
    said: list[str] = []
    return EventTable(said.append), said


def test_a_row_of_steps_that_are_not_made_is_said_twice_and_at_the_end() -> None:
    events, said = table()
    for step in range(DEAD_AFTER):
        events.note(skipped(step))
    assert len(said) == 2
    assert said[0] == "step 4: the script skipped the last 5 steps itself; further skips are counted, not printed"
    assert f"skipped all {DEAD_AFTER} steps since step 0" in said[1]
    assert events.lines(applied=0) == [
        f"the script skipped the last {DEAD_AFTER} steps itself: nothing was learned (NT505 dead_training)"
    ]
    assert events.lines(applied=1) == []  # a step was made since


def test_a_step_that_is_applied_begins_a_new_row() -> None:
    events, said = table()
    for step in range(6):
        events.note(skipped(step, applied=step // 2))
    assert (events.count(EventKind.STEP_NOT_MADE), said) == (6, [])


def test_gradients_that_are_cleared_once_are_not_in_the_summary() -> None:
    events, said = table()
    for _ in range(3):
        events.note(ScriptEvent(EventKind.NOT_CLEARED))
    assert len(said) == len(events.lines()) == 1
    events.end_row(EventKind.NOT_CLEARED)
    assert events.lines() == []


@pytest.mark.parametrize(
    ("samples", "line"),
    [
        (((7,),), "1 batch cleaned by the script with nan_to_num: dataset index 7"),
        (((7,), (7, 9)), "2 batches cleaned by the script with nan_to_num: dataset indices 7, 9"),
        (((7,), ()), "2 tensors cleaned by the script with nan_to_num: dataset index 7"),
        (((),), "1 tensor cleaned by the script with nan_to_num"),
    ],
)
def test_cleaned_data_are_said_once_and_summed_up(samples: tuple[tuple[int, ...], ...], line: str) -> None:
    events, said = table()
    for each in samples:
        events.note(ScriptEvent(EventKind.DATA_CLEANED, "sample 3 of {the} batch", samples=each))
    (only,) = said
    assert only.endswith("of its data by nan_to_num: sample 3 of {the} batch; further ones are counted")
    assert events.lines() == [line]
