"""The best cause of every program of the zoo that was looked at, and no proof of a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from torch_habits import is_possible

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def benchmark(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("explain")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("part", "form", "at_most_missed"),
    [
        ("zoo_more", "attempt", 0),
        ("zoo_third", "attempt", 0),
        ("zoo_third", "two lines", 1),
        ("zoo_traps", "attempt", 1),
        ("zoo_traps", "two lines", 2),
        ("zoo_blind", "two lines", 0),
        pytest.param("zoo_blind_models", "attempt", 0, marks=pytest.mark.slow),
        ("zoo_blind_models", "two lines", 0),
        pytest.param("zoo_blind_real", "attempt", 0, marks=pytest.mark.slow),
        ("zoo_blind_real", "two lines", 0),
        ("zoo_blind_traps", "attempt", 1),
        ("zoo_blind_traps", "two lines", 2),
        pytest.param("zoo_blind_fourth", "attempt", 0, marks=pytest.mark.slow),
        ("zoo_blind_fourth", "two lines", 1),
        pytest.param("zoo_blind_fifth", "attempt", 0, marks=pytest.mark.slow),
        ("zoo_blind_fifth", "two lines", 1),
        pytest.param("zoo_blind_sixth", "attempt", 1, marks=pytest.mark.slow),
        ("zoo_blind_sixth", "two lines", 1),
        pytest.param("zoo_blind_seventh", "attempt", 0, marks=pytest.mark.slow),
        ("zoo_blind_seventh", "two lines", 0),
        pytest.param("zoo_blind_eighth", "attempt", 0, marks=pytest.mark.slow),
        ("zoo_blind_eighth", "two lines", 0),
    ],
)
def test_a_part_of_the_zoo(
    part: str, form: str, at_most_missed: int, benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ROOT / "tests" / part
    monkeypatch.syspath_prepend(str(folder))
    tally = benchmark.Tally()
    for path in sorted(folder.glob("[0-9][0-9]_*.py")):
        if is_possible(path):
            benchmark.judge(path, form, tally)
    assert tally.false_proofs == []
    assert tally.false_sentences == []
    assert tally.false_alarms == 0
    assert tally.bugs - tally.first <= at_most_missed
