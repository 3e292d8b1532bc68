"""A run that a scheduler starts again: exit codes by kind, the memory of the last attempts, what torchrun is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nantrap.cli import main
from nantrap.errors import NonFiniteError
from nantrap.launch.runner import BY_KIND, RANK_LOST, STOPPED
from nantrap.launch.settings import RunSettings

TRAIN = """
import math, sys
import torch

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(40, 4)
if "--fault" in sys.argv:
    data[int(sys.argv[-1])] = math.nan
for batch in torch.utils.data.DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
"""
LOST = """
import torch
from nantrap.errors import RankLostError

raise RankLostError("rank 1 did not answer rank 0")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def attempt(script: Path, *arguments: str, options: tuple[str, ...] = ("--exit-by-kind",)) -> int:
    """One attempt in the folder `run`, which stops at the first bad step."""
    return main(["run", "--max-skips", "0", "--run-dir", "run", *options, str(script), *arguments])


def applied(folder: Path) -> list[int]:
    """The numbers of all steps that were applied, of all attempts."""
    lines = map(json.loads, (folder / "run" / "journal-r0.jsonl").read_text().splitlines())
    return [line["step"] for line in lines if line.get("action") == "apply"]


def test_without_the_option_a_stopped_run_ends_with_3(script: Path) -> None:
    assert attempt(script, "--fault", "22", options=()) == STOPPED == 3


def test_a_proven_cause_will_come_again(script: Path) -> None:
    assert attempt(script, "--fault", "22") == BY_KIND["repeats"] == 40


def test_a_cause_that_is_not_proven_has_another_code(script: Path) -> None:
    assert attempt(script, "--fault", "22", options=("--exit-by-kind", "--diagnose", "off")) == BY_KIND["spent"] == 42


def test_a_lost_rank_has_its_own_code(script: Path) -> None:
    script.write_text(LOST)
    assert attempt(script) == RANK_LOST == 43
    assert attempt(script, options=()) == 1


def test_a_healthy_attempt_ends_with_0(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANTRAP_RESTART_COUNT", "1")
    assert attempt(script) == 0
    assert attempt(script) == 0


def test_the_third_attempt_is_not_made(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attempt(script, "--fault", "22") == 40
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    capsys.readouterr()
    assert attempt(script, "--fault", "22", options=("--exit-by-kind", "--max-skips", "5")) == 40
    assert "the last attempt stopped at the same incident (bad_input_data, sample 22 of the dataset)" in (
        capsys.readouterr().err
    )
    assert applied(script.parent) == [*range(5), *range(5)], "no skip is tried again"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert attempt(script, "--fault", "22") == 40
    said = capsys.readouterr().err
    assert "not started: the last two attempts stopped at the same incident (bad_input_data, sample 22" in said
    assert applied(script.parent) == [*range(5), *range(5)]


def test_another_sample_is_another_incident(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt(script, "--fault", "22")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    attempt(script, "--fault", "26")
    assert "the last attempt" not in capsys.readouterr().err
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    attempt(script, "--fault", "22")
    said = capsys.readouterr().err
    assert "the last attempt" not in said, "the last attempt stopped at another sample"
    assert "not started" not in said


def test_a_run_that_was_started_by_hand_is_always_tried(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        assert attempt(script, "--fault", "22") == 40
    said = capsys.readouterr().err
    assert "the last attempt" not in said
    assert "not started" not in said


def test_an_attempt_that_ended_well_forgets_the_stop(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt(script, "--fault", "22")
    monkeypatch.setenv("NANTRAP_RESTART_COUNT", "1")
    assert attempt(script) == 0
    attempt(script, "--fault", "22")
    assert "the last attempt" not in capsys.readouterr().err


def test_torchrun_is_told_in_one_line(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = script.parent / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    assert attempt(script) == 0
    assert not file.exists(), "a healthy worker writes nothing"
    attempt(script, "--fault", "22")
    told = json.loads(file.read_text())["message"]
    assert told["message"] == told["extraInfo"]["py_callstack"]
    assert told["message"].startswith("step 5 stopped: data: [NT101]")
    assert "\n" not in told["message"]
    assert int(told["extraInfo"]["timestamp"]) > 0


def test_an_error_of_a_guard_says_its_kind(script: Path) -> None:
    """A program that catches the error itself, such as a training function of Ray, decides by it."""
    import torch

    import nantrap

    model = torch.nn.Linear(4, 1)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), policy=nantrap.Policy.strict())
    with pytest.raises(NonFiniteError) as caught:
        guard.attempt(lambda batch: model(batch).mean(), torch.full((2, 4), float("nan")))
    assert caught.value.kind == "repeats"


def test_the_option_is_known_to_the_settings() -> None:
    assert RunSettings(exit_by_kind=True).exit_by_kind


@pytest.mark.slow
def test_torchrun_starts_a_run_again_that_stops_at_once(script: Path) -> None:
    """The real `torchrun --max-restarts`, two processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "2", "--no-python", sys.executable, "-m", "nantrap", "run", "--max-skips", "0"]
    command += ["--run-dir", "run", "--exit-by-kind", str(script), "--fault", "22"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250, cwd=script.parent)
    assert ended.returncode == 1
    assert "exitcode  : 40" in ended.stderr
    assert "traceback : not started: the last two attempts stopped at the same incident" in ended.stderr
    assert applied(script.parent) == [*range(5), *range(5)]
