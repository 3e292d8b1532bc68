"""The best cause of every program of the zoo that was looked at, and no proof of a wrong one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))  # what the benchmarks share stands beside them
    spec = importlib.util.spec_from_file_location("benchmark_explain", ROOT / "benchmarks" / "explain.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmark_explain"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("part", "form", "at_most_missed"),
    [
        ("zoo_more", "attempt", 0),
        ("zoo_third", "attempt", 0),
        ("zoo_third", "two lines", 3),
    ],
)
def test_a_part_of_the_zoo(
    part: str, form: str, at_most_missed: int, benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ROOT / "tests" / part
    monkeypatch.syspath_prepend(str(folder))
    tally = benchmark.Tally()
    for path in sorted(folder.glob("[0-9][0-9]_*.py")):
        benchmark.judge(path, form, tally)
    assert tally.false_proofs == []
    assert tally.false_alarms == 0
    assert tally.bugs - tally.first <= at_most_missed
