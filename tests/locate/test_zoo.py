"""The everyday failures of the zoo in both forms, located and not explained."""

from __future__ import annotations

import pytest

from torch_habits import is_possible
from zoo.judging import Tally, measure
from zoo.loading import find
from zoo.tools.nantrap import Guarded


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("form", "at_most_missed"), [("attempt", 1), ("two lines", 3)], ids=["attempt", "two lines"])
def test_the_zoo(form: str, at_most_missed: int) -> None:
    tool = Guarded(form, diagnose="locate")
    tally = Tally([measure(tool, path) for path in filter(is_possible, find("everyday_failures"))])
    assert tally.false_alarms == 0
    missed = [(answer.program, answer.said) for answer in tally.failures if not answer.full_place]
    assert len(missed) <= at_most_missed, missed
