"""Faults on one rank or on both, over loops with two ranks: nothing poisoned, no hang, ranks equal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "rank_storm.py"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")


def storm(*options: str) -> str:
    command = [sys.executable, str(BENCHMARK), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_storm_over_two_ranks() -> None:
    assert " 0 wrong" in storm("--faults", "12")


def test_a_bad_micro_batch_that_one_rank_alone_knows_of_makes_no_rank_wait() -> None:
    """The first micro-batch of sharded gradients, whose reduction comes with the second."""
    said = storm("--loop", "sharded_accumulation", "--seed", "3", "--faults", "4", "--limit", "60")
    assert " 0 wrong" in said


@pytest.mark.slow
def test_a_longer_storm() -> None:
    assert " 0 wrong" in storm("--faults", "400", "--seed", "5000")
