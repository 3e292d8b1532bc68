"""Faults on one rank or on both, over loops with two ranks: nothing poisoned, no hang, ranks equal."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ranked import start

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")


def one_rank(rank: int, options: dict[str, Any], folder: str) -> None:
    sys.path.append(str(BENCHMARKS))
    rank_storm = importlib.import_module("rank_storm")
    usual = {"loop": None, "seed": 0, "steps": 10, "diagnose_every": 4, "limit": 60, "results": Path(folder, "results")}
    rank_storm.work(rank, argparse.Namespace(**(usual | options)), [], folder)


def storm(folder: Path, **options: Any) -> None:
    start(one_rank, options, str(folder))
    runs = [json.loads(line) for line in (folder / "results").read_text().splitlines()]
    assert sum(run["faults"] for run in runs) >= options["faults"]
    assert [words for run in runs for words in run["wrong"]] == []


def test_a_storm_over_two_ranks(tmp_path: Path) -> None:
    storm(tmp_path, faults=12, steps=8)


def test_a_bad_micro_batch_that_one_rank_alone_knows_of_makes_no_rank_wait(tmp_path: Path) -> None:
    """The first micro-batch of sharded gradients, whose reduction comes with the second."""
    storm(tmp_path, faults=4, loop=["sharded_accumulation"], seed=3)


@pytest.mark.slow
def test_a_longer_storm(tmp_path: Path) -> None:
    storm(tmp_path, faults=400, seed=5000)
