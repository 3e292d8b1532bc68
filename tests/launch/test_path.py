"""How many of our calls a healthy step makes, in how many files: counted, not timed, so the same on every machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from torch_habits import VERSION

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "path.py"
# an older torch is asked about its compiler by a function of ours, four times and in one more file
MOST_CALLS, MOST_FILES = (54, 11) if VERSION < (2, 9) else (50, 10)


@pytest.fixture(scope="module")
def counts() -> dict[str, dict[str, int]]:
    """In a process of its own: hooks and wrappers of other tests would be counted too."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--json"], capture_output=True, text=True, timeout=240, check=True
    )
    found: dict[str, dict[str, int]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("way", ["two lines", "attempt", "nantrap run"])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_a_healthy_step_makes_few_calls_in_few_files(counts: dict[str, dict[str, int]], model: str, way: str) -> None:
    found = counts[f"{model}, {way}"]
    assert found["calls"] <= MOST_CALLS
    assert found["files"] <= MOST_FILES


def test_every_way_on_every_model_is_counted(counts: dict[str, dict[str, int]]) -> None:
    assert len(counts) == 6
    assert min(found["calls"] for found in counts.values()) > 10  # a count that misses our files would be small
