"""A rank that dies in the middle of a diagnosis: what it leaves, what the other reports, how a restart continues."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ranked import run_apart

SCRIPT = str(Path(__file__).parent / "scripts" / "dies.py")
LAUNCHER = ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")


def start(folder: Path, **environment: str) -> list[tuple[int, str]]:
    """Both ranks without a launcher; their exit codes and what they wrote to stderr."""
    folder.mkdir(exist_ok=True)
    return run_apart([sys.executable, SCRIPT, str(folder)], {**ENVIRONMENT, **environment})


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(2)]


def last_line(folder: Path, rank: int) -> dict[str, Any]:
    line: dict[str, Any] = json.loads((folder / "run" / f"journal-r{rank}.jsonl").read_text().splitlines()[-1])
    return line


def test_a_rank_that_dies_while_it_diagnoses(tmp_path: Path) -> None:
    (code, said), (died, _) = start(tmp_path / "here")
    assert died == 9
    assert code == 1, "the other one ends too, at once and not by a timeout of the test"
    assert "RankLostError: rank 1 did not answer rank 0: it has died, or took longer than" in said
    assert "journal-r*.jsonl say what it did" in said
    begun = last_line(tmp_path / "here", 1)
    assert (begun["kind"], begun["step"], begun["found"][0]) == ("incident_begins", 5, "loss loss")


@pytest.mark.slow
def test_a_restart_continues_from_the_last_good_checkpoint(tmp_path: Path) -> None:
    """As an elastic launcher does it: both ranks end, and both are started again."""
    assert [code for code, _ in start(tmp_path / "restarted")] == [1, 9]
    for folder in (tmp_path / "restarted", tmp_path / "undisturbed"):
        ended = start(folder, TORCHELASTIC_RESTART_COUNT="1")
        assert [code for code, _ in ended] == [0, 0], ended
    for restarted, plain in zip(results(tmp_path / "restarted"), results(tmp_path / "undisturbed"), strict=True):
        assert (restarted["begun"] in (2, 4), plain["begun"]) == (True, 0)
        assert restarted["weights"] == plain["weights"], "as if no rank had died"


@pytest.mark.slow
def test_torchrun_restarts_and_the_guard_continues(tmp_path: Path) -> None:
    """The launcher's own restart: it ends the rank that is left, and starts both again."""
    folder = tmp_path / "elastic"
    folder.mkdir()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    ended = subprocess.run(
        [*torchrun, SCRIPT, str(folder)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert [code for code, _ in start(tmp_path / "undisturbed", TORCHELASTIC_RESTART_COUNT="1")] == [0, 0]
    for restarted, plain in zip(results(folder), results(tmp_path / "undisturbed"), strict=True):
        assert restarted["attempt"] == 1, "both ranks were started a second time"
        assert restarted["begun"] in (2, 4)
        assert restarted["weights"] == plain["weights"], "as if no rank had died"
    kinds = [
        json.loads(line).get("kind", "step") for line in (folder / "run" / "journal-r1.jsonl").read_text().splitlines()
    ]
    assert "incident_begins" in kinds, "what the dead rank was doing is still there"
    assert kinds[-1] == "run_ends"
