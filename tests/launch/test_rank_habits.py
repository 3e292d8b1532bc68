"""How people train on two ranks, each under `nantrap run`: unchanged while healthy, never a hang, contained when bad.

Both ranks run all scenarios of `scripts/ranks.py` in one process each; the plain run beside them says what is right.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = str(Path(__file__).parent / "scripts" / "ranks.py")
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("NANTRAP_")}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "WORLD_SIZE": "2"}
HEALTHY = ("disabled_scaler", "join", "alone", "apart", "sharded", "mixed", "accumulated", "night")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")


def start(folder: Path, scenarios: tuple[str, ...], *, guarded: bool) -> list[str]:
    """Run the scenarios on two ranks. Returns what each rank wrote to stderr."""
    options = ["-m", "nantrap", "run", "--run-dir", str(folder / "run")] if guarded else []
    ranks = [
        subprocess.Popen(
            [sys.executable, *options, SCRIPT, str(folder), *scenarios],
            env={**ENVIRONMENT, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=200)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return said


def results(folder: Path) -> list[dict[str, list[str]]]:
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[str]]]:
    folder = tmp_path_factory.mktemp("plain")
    start(folder, HEALTHY, guarded=False)
    return results(folder)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Healthy scenarios, then the same with faults, in one pair of processes."""
    folder = tmp_path_factory.mktemp("guarded")
    return folder, start(folder, (*HEALTHY, *(f"bad:{name}" for name in HEALTHY)), guarded=True)


Guarded = tuple[Path, list[str]]


@pytest.mark.parametrize("scenario", HEALTHY)
def test_a_healthy_run_is_unchanged(scenario: str, plain: list[dict[str, list[str]]], guarded: Guarded) -> None:
    assert [rank[scenario] for rank in results(guarded[0])] == [rank[scenario] for rank in plain]


def test_no_rank_is_missed_while_all_have_guards(guarded: Guarded) -> None:
    assert not any("has no guard" in said for said in guarded[1])


def journal(folder: Path, scenario: str, rank: int) -> list[dict[str, Any]]:
    """The steps of a scenario with faults: the optimizers are numbered in the order in which they were made."""
    number = len(HEALTHY) + HEALTHY.index(scenario) + 1
    path = folder / "run" / f"optimizer-{number}" / f"journal-r{rank}.jsonl"
    return [line for line in map(json.loads, path.read_text().splitlines()) if "kind" not in line]


def incidents(folder: Path, scenario: str) -> dict[str, dict[str, Any]]:
    number = len(HEALTHY) + HEALTHY.index(scenario) + 1
    found = (folder / "run" / f"optimizer-{number}").glob("incidents/*/incident.json")
    return {path.parent.name: json.loads(path.read_text()) for path in found}


def actions(folder: Path, scenario: str) -> list[list[str]]:
    return [[line["action"] for line in journal(folder, scenario, rank)] for rank in range(2)]


@pytest.mark.parametrize("scenario", ["disabled_scaler", "alone", "accumulated", "night"])
def test_replicas_stay_equal(scenario: str, guarded: Guarded) -> None:
    zero, one = (rank[f"bad:{scenario}"] for rank in results(guarded[0]))
    assert zero == one
    assert not any("nan" in value for value in zero)


def test_a_scaler_that_is_switched_off(guarded: Guarded) -> None:
    assert actions(guarded[0], "disabled_scaler") == [["apply", "apply", "skip", "apply"]] * 2


def test_a_fault_under_join(guarded: Guarded) -> None:
    """Nothing is exchanged; the averaged gradients tell both ranks."""
    assert actions(guarded[0], "join") == [["apply", "skip", "apply"], ["apply", "skip", "apply", "apply", "apply"]]
    zero, one = (rank["bad:join"] for rank in results(guarded[0]))
    assert zero == one


def test_models_that_have_nothing_to_do_with_each_other(plain: list[dict[str, list[str]]], guarded: Guarded) -> None:
    assert actions(guarded[0], "apart") == [["apply"] * 4, ["apply", "skip", "apply", "apply"]]
    assert results(guarded[0])[0]["bad:apart"] == plain[0]["apart"], "rank 0 loses nothing to the fault of rank 1"
    assert [each["origin_rank"] for each in incidents(guarded[0], "apart").values()] == [1]


def test_sharded_weights_are_located_by_all_ranks_together(guarded: Guarded) -> None:
    folder = guarded[0]
    assert actions(folder, "sharded") == [["apply", "skip", "apply", "skip", "apply"]] * 2
    found = incidents(folder, "sharded")
    assert sorted(found) == ["000001-r1", "000003-r1"]
    forward, backward = found["000001-r1"], found["000003-r1"]
    assert (forward["op"], forward["module"], forward["phase"]) == ("aten.log", "1", "forward")
    assert (backward["module"], backward["phase"]) == ("1", "backward")
    for incident in found.values():
        assert (incident["origin_rank"], incident["bad_ranks"]) == (1, [1])
        assert any("run again by all ranks together" in note for note in incident["notes"])


def test_each_fault_is_told_of_its_rank(guarded: Guarded) -> None:
    folder, said = guarded
    expected = ["apply", "skip", "skip", "skip", "skip", "apply", "skip", "apply"]
    assert actions(folder, "night") == [expected] * 2
    found = {
        name: (each["origin_rank"], each["bad_ranks"], each["op"]) for name, each in incidents(folder, "night").items()
    }
    assert found["000001-r0"] == (0, [0, 1], "aten.log")
    assert found["000001-r1"] == (0, [0, 1], "aten.div")
    assert found["000006-r1"] == (1, [1], "aten.div")
    assert "000006-r0" not in found
    assert "undiagnosed" not in said[0]
