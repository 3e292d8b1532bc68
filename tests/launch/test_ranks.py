"""Two real ranks under `nantrap run`, of which one has a bad sample: no hang, one decision, equal weights.

Started as people start them: torchrun around nantrap, and a script that spawns its ranks itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nantrap.launch.processes import guarded_command
from nantrap.launch.settings import RunSettings, as_environment, read_settings

SCRIPT = str(Path(__file__).parent / "scripts" / "ddp.py")
MISTAKES = ("Right", "Ensemble", "Bare", "Half", "ByHand")
REPLICAS = str(Path(__file__).parent / "scripts" / "replicas.py")
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("NANTRAP_")}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
BAD = 9  # odd, so rank 1's: its fifth sample, in the second step
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")


def start(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["nice", *command], check=False, capture_output=True, text=True, cwd=folder, env=ENVIRONMENT, timeout=240
    )


def torchrun(*command: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command]


def journals(run_dir: Path) -> list[list[dict[str, Any]]]:
    assert sorted(path.name for path in run_dir.glob("journal-*")) == ["journal-r0.jsonl", "journal-r1.jsonl"]
    files = [run_dir / f"journal-r{rank}.jsonl" for rank in range(2)]
    lines = [[json.loads(line) for line in path.read_text().splitlines()] for path in files]
    return [[line for line in each if "kind" not in line] for each in lines]


def check(folder: Path, ended: subprocess.CompletedProcess[str]) -> Path:
    """Both ranks skipped the second step, and only that; returns the folder of the run."""
    assert ended.returncode == 0, ended.stderr
    zero, one = (json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(2))
    assert zero["finite"] and one["finite"]  # noqa: PT018
    assert zero["weights"] == one["weights"]
    assert zero["updates"] == one["updates"] == 3
    run_dirs = [path.parent for path in folder.rglob("journal-r0.jsonl")]
    assert len(run_dirs) == 1
    for lines in journals(run_dirs[0]):
        assert [line["action"] for line in lines] == ["apply", "skip", "apply", "apply"]
    incidents = [json.loads(path.read_text()) for path in run_dirs[0].glob("incidents/*/incident.json")]
    assert incidents
    assert {each["step"] for each in incidents} == {1}
    assert {each["rank"] for each in incidents} == {1}, "where it began"
    named = [each for each in incidents if each["dataset_indices"]]
    assert [each["dataset_indices"] for each in named] == [[BAD]]
    assert {each["phase"] for each in named} == {"data"}
    summary = [line for line in ended.stderr.splitlines() if " applied (" in line]
    assert [line.rpartition("nantrap: ")[2] for line in summary] == ["4 steps, 3 applied (75.0 %), 1 incident"]
    return run_dirs[0]


def test_torchrun_around_nantrap(tmp_path: Path) -> None:
    nantrap = str(Path(sys.executable).with_name("nantrap"))
    ended = start(tmp_path, *torchrun("--no-python", nantrap, "run", SCRIPT, "--bad", str(BAD)))
    run_dir = check(tmp_path, ended)
    assert run_dir.parent == tmp_path / "runs"


def test_a_script_that_spawns_its_ranks(tmp_path: Path) -> None:
    ended = start(
        tmp_path, sys.executable, "-m", "nantrap", "run", "--run-dir", "run", SCRIPT, "--spawn", "--bad", str(BAD)
    )
    assert check(tmp_path, ended) == tmp_path / "run"
    own = [line for line in ended.stdout.splitlines() if not line.startswith("[Gloo]")]  # torch 2.9 prints its peers
    assert own == ["both are done"]
    last = ended.stderr.splitlines()[-1]
    assert last == "nantrap: the training ran in other processes, each of which prints its own summary"


def test_a_launcher_that_starts_ranks_as_processes(tmp_path: Path) -> None:
    """As Lightning does: plain Python processes, with the rank in their environment. They also save with DCP."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = start(
        tmp_path, sys.executable, "-m", "nantrap", "run", "--run-dir", "run", *launcher, SCRIPT, "--bad", str(BAD),
        "--dcp",
    )  # fmt: skip
    assert check(tmp_path, ended) == tmp_path / "run"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
        "good", "good.nonfinite", "later", "run",
    ]  # fmt: skip
    said = [line for line in ended.stderr.splitlines() if "would hold non-finite values" in line]
    assert "good would hold non-finite values (model.0.weight" in "".join(said)
    assert "what was there stays" in "".join(said)


def test_which_commands_are_ranks() -> None:
    rank = {"LOCAL_RANK": "1"}
    python = sys.executable
    found = guarded_command([python, "-u", "train.py", "--lr", "1"], rank, here={})
    assert found == [python, "-u", "-m", "nantrap", "run", "train.py", "--lr", "1"]
    found = guarded_command([python, "-X", "dev", "-m", "package.train"], rank, here={"LOCAL_RANK": "0"})
    assert found == [python, "-X", "dev", "-m", "nantrap", "run", "-m", "package.train"]
    assert guarded_command([python, "train.py"], {}, here={}) is None, "no rank"
    assert guarded_command([python, "train.py"], rank, here=rank) is None, "an ordinary child of a rank"
    assert guarded_command([python, "-c", "print()"], rank, here={}) is None
    assert guarded_command([python, "-m", "nantrap", "run", "train.py"], rank, here={}) is None
    assert guarded_command(["nvidia-smi"], rank, here={}) is None
    assert guarded_command("python train.py", rank, here={}) is None


def test_settings_travel_in_the_environment(tmp_path: Path) -> None:
    settings = RunSettings(
        policy_name="strict", max_skips=0, rollback=True, run_dir="/there", alert="command:true", clip=0.5,
        save_every=10, watch="scale<2", check_state="epoch", quiet=True,
    )  # fmt: skip
    assert read_settings({}, environment=as_environment(settings), folder=tmp_path) == settings


@pytest.mark.slow
def test_ranks_that_drift_apart_are_told(tmp_path: Path) -> None:
    """Every loss is finite; what is wrong is that the gradients of something are not averaged."""
    ended = start(tmp_path, sys.executable, "-m", "nantrap", "run", "--run-dir", "run", REPLICAS)
    assert ended.returncode == 0, ended.stderr
    said = {mistake: [line for line in ended.stderr.splitlines() if mistake in line] for mistake in MISTAKES}
    assert not said["Right"]
    assert not said["Ensemble"]
    told = "\n".join(said["Bare"])
    assert "Bare is called without its DistributedDataParallel wrapper, so its gradients are not averaged over" in told
    assert "(NT867 ddp_bypassed)" in told
    differing = [line for line in ended.stderr.splitlines() if "hold different values after 1 step although" in line]
    assert len([line for line in differing if "bare_body.weight, bare_body.bias" in line]) >= 1
    assert len([line for line in differing if ": linear.weight (NT701 rank_divergence)" in line]) >= 1
    assert len([line for line in differing if ": byhand_head.bias (NT701 rank_divergence)" in line]) >= 1
    assert not [line for line in differing if "right_" in line or "ensemble_" in line]


@pytest.mark.slow
def test_ranks_that_give_up_a_step_together_hold_the_same(tmp_path: Path) -> None:
    """The rank with the bad gradient counts one step more than the other; they are compared after the same update."""
    script = str(Path(__file__).parent / "scripts" / "dropped_together.py")
    ended = start(tmp_path, sys.executable, "-m", "nantrap", "run", "--run-dir", "run", script, str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert "singular_gradient_at_zero" in ended.stderr
    assert "hold different values" not in ended.stderr


@pytest.mark.slow
def test_torchrun_with_nantrap_as_its_module(tmp_path: Path) -> None:
    ended = start(tmp_path, *torchrun("-m", "nantrap", "run", "--run-dir", "run", SCRIPT, "--bad", str(BAD)))
    assert check(tmp_path, ended) == tmp_path / "run"


@pytest.mark.slow
def test_all_ranks_stop_together(tmp_path: Path) -> None:
    """In a script that spawns, the parent ends with the guard's code too."""
    ended = start(
        tmp_path, sys.executable, "-m", "nantrap", "run", "--policy", "strict", "--run-dir", "run", SCRIPT, "--spawn",
        "--bad", str(BAD),
    )  # fmt: skip
    assert ended.returncode == 3, ended.stderr
    assert [[line["action"] for line in lines] for lines in journals(tmp_path / "run")] == [["apply", "stop"]] * 2
    assert not list(tmp_path.glob("result-*"))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_that_are_no_ranks_have_their_own_folders(tmp_path: Path, method: str) -> None:
    (tmp_path / "program.py").write_text(PROCESSES)
    ended = start(tmp_path, sys.executable, "-m", "nantrap", "run", "--run-dir", "run", "program.py", method)
    assert ended.returncode == 0, ended.stderr
    assert [(tmp_path / f"finite-{number}").read_text() for number in range(2)] == ["True", "True"]
    for folder in (tmp_path / "run", tmp_path / "run" / "process-2"):
        lines = map(json.loads, (folder / "journal-r0.jsonl").read_text().splitlines())
        assert [line["action"] for line in lines if "kind" not in line] == ["apply", "apply", "skip", "apply"]
        assert len(list((folder / "incidents").iterdir())) == 1


PROCESSES = """
import sys, torch
import torch.multiprocessing as mp

def work(number):
    torch.manual_seed(number)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.full((2, 3), float("nan") if step == 2 else 1.0)).sum().backward()
        optimizer.step()
    with open(f"finite-{number}", "w") as file:
        file.write(str(all(bool(p.isfinite().all()) for p in model.parameters())))

if __name__ == "__main__":
    mp.start_processes(work, nprocs=2, start_method=sys.argv[1])
"""
