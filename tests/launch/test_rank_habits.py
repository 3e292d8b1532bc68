"""How people train on two ranks, each under guard: unchanged while healthy, never a hang, contained when bad.

Two processes run every scenario of `scripts/ranks.py` three times: plain, guarded, and guarded with faults.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import sharding
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings
from nantrap.launch.summary import RunSummary
from ranked import start

SCRIPT = Path(__file__).parent / "scripts" / "ranks.py"
SHARDED = ("sharded", "mixed") if sharding.RUNS else ()
HEALTHY = ("disabled_scaler", "scaled", "join", "alone", "apart", *SHARDED, "accumulated", "night")
BAD = tuple(f"bad:{name}" for name in HEALTHY)
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")


def worker(rank: int, folder: str) -> None:
    os.environ["RANK"] = str(rank)  # the script reads it
    from launch.scripts import ranks

    ranks.begin(folder)
    plain = ranks.run(HEALTHY)
    said = io.StringIO()
    with contextlib.redirect_stderr(said), attached(RunSettings(run_dir=f"{folder}/run")):
        guarded = ranks.run((*HEALTHY, *BAD))
    own_lines = {}
    for scenario in ("join", "accumulated"):
        with attached(RunSettings(run_dir=f"{folder}/{scenario}", quiet=True)) as attachment:
            ranks.run((f"bad:{scenario}",))
            own_lines[scenario] = RunSummary.of(attachment).own_lines()
    result = {"plain": plain, "guarded": guarded, "said": said.getvalue(), "own_lines": own_lines}
    Path(folder, f"result-{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


class Runs:
    """What the two ranks left behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ranks = [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(2)]

    def weights(self, scenario: str, *, guarded: bool = True) -> list[list[str]]:
        return [rank["guarded" if guarded else "plain"][scenario] for rank in self.ranks]

    def actions(self, scenario: str) -> list[list[str]]:
        """What was done with each step of a scenario with faults, by rank."""
        return [actions_of(self._run(scenario) / f"journal-r{rank}.jsonl") for rank in range(2)]

    def incidents(self, scenario: str) -> dict[str, dict[str, Any]]:
        found = self._run(scenario).glob("incidents/*/incident.json")
        return {path.parent.name: json.loads(path.read_text()) for path in found}

    def _run(self, scenario: str) -> Path:
        """The optimizers are numbered in the order in which they were made."""
        return self.folder / "run" / f"optimizer-{len(HEALTHY) + HEALTHY.index(scenario) + 1}"


def actions_of(journal: Path) -> list[str]:
    lines = map(json.loads, journal.read_text().splitlines())
    return [line["action"] for line in lines if "kind" not in line]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("habits")
    start(worker, str(folder))
    return Runs(folder)


@pytest.mark.parametrize("scenario", HEALTHY)
def test_a_healthy_run_is_unchanged(scenario: str, runs: Runs) -> None:
    assert runs.weights(scenario) == runs.weights(scenario, guarded=False)


def test_no_rank_is_missed_while_all_have_guards(runs: Runs) -> None:
    assert not any("has no guard" in rank["said"] for rank in runs.ranks)


@pytest.mark.parametrize("scenario", ["disabled_scaler", "scaled", "join", "alone", "accumulated", "night"])
def test_replicas_stay_equal(scenario: str, runs: Runs) -> None:
    zero, one = runs.weights(f"bad:{scenario}")
    assert zero == one
    assert not any("nan" in value for value in zero)


def test_a_scaler_that_is_switched_off(runs: Runs) -> None:
    assert runs.actions("disabled_scaler") == [["apply", "apply", "skip", "apply"]] * 2


def test_nan_under_a_scaler_is_not_taken_for_its_search(runs: Runs) -> None:
    assert runs.actions("scaled") == [["apply", "apply", "skip", "skip", "apply"]] * 2
    (incident,) = runs.incidents("scaled").values()
    assert (incident["step"], incident["rank"], incident["origin_rank"]) == (2, 1, 1)
    assert runs.weights("bad:scaled")[0][-1] == (2.0**14).hex(), "both halve the scale, as without nantrap"


def test_a_fault_under_join(runs: Runs) -> None:
    """Nothing is exchanged; the averaged gradients tell both ranks, and the innocent one does not blame itself."""
    assert runs.actions("join") == [["apply", "skip", "apply"], ["apply", "skip", "apply", "apply", "apply"]]
    found = runs.incidents("join")
    assert (found["000001-r1"]["origin_rank"], found["000001-r1"]["phase"]) == (1, "data")
    assert found["000001-r0"]["origin_rank"] is None
    assert "so it may have begun on another rank" in found["000001-r0"]["notes"][-1]


def test_what_rank_1_alone_knows_under_join_is_in_its_summary(runs: Runs) -> None:
    _, one = runs.ranks
    assert one["own_lines"]["join"] == ["on rank 1: 5 steps, 4 applied, 1 incident: 1 × bad_input_data (a guess)"]
    assert one["own_lines"]["accumulated"] == [], "rank 0 was told, and says it for all"


def test_steps_of_one_rank_alone(runs: Runs) -> None:
    zero, one = runs.actions("alone")
    assert one == ["apply", "skip", "apply"]
    assert zero == ["apply", "apply", "skip", "skip", "apply", "apply", "apply"]
    found = runs.incidents("alone")
    assert {name: each["origin_rank"] for name, each in found.items()} == {"000001-r1": 1, "000002-r0": 0}


def test_models_that_have_nothing_to_do_with_each_other(runs: Runs) -> None:
    assert runs.actions("apart") == [["apply"] * 4, ["apply", "skip", "apply", "apply"]]
    unharmed = runs.weights("apart", guarded=False)[0]
    assert runs.weights("bad:apart")[0] == unharmed, "rank 0 loses nothing to the fault of rank 1"
    assert [each["origin_rank"] for each in runs.incidents("apart").values()] == [1]


@sharding.needs_sharding
def test_sharded_weights_are_located_by_all_ranks_together(runs: Runs) -> None:
    assert runs.actions("sharded") == [["apply", "skip", "apply", "skip", "apply"]] * 2
    found = runs.incidents("sharded")
    assert sorted(found) == ["000001-r1", "000003-r1"]
    forward, backward = found["000001-r1"], found["000003-r1"]
    assert (forward["op"], forward["module"], forward["phase"]) == ("aten.log", "1", "forward")
    assert (backward["op"], backward["module"], backward["phase"]) == ("aten.div", "1", "backward")
    assert [each["causes"][0]["slug"] for each in (forward, backward)] == ["log_of_zero", "singular_gradient_at_zero"]
    for incident in found.values():
        assert (incident["origin_rank"], incident["bad_ranks"]) == (1, [1])
        assert any("run again by all ranks together" in note for note in incident["notes"])


@sharding.needs_sharding
def test_split_and_plain_parameters(runs: Runs) -> None:
    assert runs.actions("mixed") == [["apply", "skip", "apply"]] * 2
    found = runs.incidents("mixed")
    assert {each["phase"] for each in found.values()} == {"data"}
    assert {tuple(each["bad_ranks"]) for each in found.values()} == {(0, 1)}


def test_the_guilty_micro_batch_of_one_rank(runs: Runs) -> None:
    assert runs.actions("accumulated") == [["apply", "skip", "apply", "apply"]] * 2
    (incident,) = runs.incidents("accumulated").values()
    assert (incident["rank"], incident["phase"], incident["causes"][0]["slug"]) == (1, "data", "bad_input_data")
    assert "it began in micro-batch 1 of 3" in incident["notes"]
    said = runs.ranks[0]["said"]
    assert "   = note:   it began in micro-batch 1 of 3\n" in said, "the first rank, which prints, was told"
    assert f"report: {incident['bundle']}/report.html\n" in said


def test_each_fault_names_its_rank(runs: Runs) -> None:
    assert runs.actions("night") == [["apply", "skip", "skip", "skip", "skip", "apply", "skip", "apply"]] * 2
    found = {
        name: (each["origin_rank"], each["bad_ranks"], each["op"]) for name, each in runs.incidents("night").items()
    }
    assert found["000001-r0"] == (0, [0, 1], "aten.log")
    assert found["000001-r1"] == (0, [0, 1], "aten.div")
    assert found["000006-r1"] == (1, [1], "aten.div")
    assert "000006-r0" not in found
    assert "undiagnosed" not in runs.ranks[0]["said"]


@pytest.mark.slow
def test_the_same_from_the_command_line(tmp_path: Path, runs: Runs) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NANTRAP_")}
    environment |= {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "nantrap", "run", "--run-dir", str(tmp_path / "run"), str(SCRIPT), str(tmp_path)]
    ranks = [
        subprocess.Popen([*command, *BAD], env={**environment, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=300)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    for number, scenario in enumerate(HEALTHY, start=1):
        run_dir = tmp_path / "run" if number == 1 else tmp_path / "run" / f"optimizer-{number}"
        assert [actions_of(run_dir / f"journal-r{rank}.jsonl") for rank in range(2)] == runs.actions(scenario)
    assert said[0].splitlines()[-1].startswith("nantrap: report: ")
    assert "43 steps, 28 applied (65.1 %), 14 incidents" in said[0]
