"""The everyday failures of the zoo in both forms. The rules of judgement are the benchmark's."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from torch_habits import is_possible
from zoo.loading import find, is_control, load


@pytest.fixture(scope="module")
def benchmark(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("locate")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("method", "at_most_missed"),
    [("nantrap, attempt", 1), ("nantrap, two lines", 3)],
    ids=["attempt", "two lines"],
)
def test_the_zoo(method: str, at_most_missed: int, benchmark: ModuleType) -> None:
    missed, alarms = [], []
    for path in filter(is_possible, find("everyday_failures")):
        case = load(path)
        truth = case["truth"]
        alarm, _ = benchmark.METHODS[method](case)
        if is_control(truth):
            alarms += [path.stem] if alarm is not None else []
        elif alarm is None or alarm.step != truth["first_bad_step"] or not benchmark.right_place(alarm, truth, method):
            missed.append((path.stem, alarm))
    assert alarms == []
    assert len(missed) <= at_most_missed, missed
