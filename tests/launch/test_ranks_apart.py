"""Ranks that do not go together: one is gone, or far ahead of the other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ranked import run_apart

SCRIPTS = Path(__file__).parent / "scripts"
LAUNCHER = ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in LAUNCHER} | {"NO_COLOR": "1"}
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")


def start(script: str, tmp_path: Path) -> tuple[list[int], list[str]]:
    """Both ranks under nantrap run: their exit codes and what they wrote to stderr."""
    command = [sys.executable, "-m", "nantrap", "run", "--run-dir", str(tmp_path / "run")]
    return _results([*command, str(SCRIPTS / script), str(tmp_path)])


def _results(command: list[str]) -> tuple[list[int], list[str]]:
    ended = run_apart(command, {**ENVIRONMENT, "WORLD_SIZE": "2"})
    return [code for code, _ in ended], [words for _, words in ended]


@pytest.mark.parametrize("form", ["run", "two_lines"])
def test_an_error_of_the_transport_is_explained(tmp_path: Path, form: str) -> None:
    two_lines = [sys.executable, str(SCRIPTS / "rank_raises.py"), str(tmp_path), "two_lines"]
    codes, (said, died) = start("rank_raises.py", tmp_path) if form == "run" else _results(two_lines)
    assert codes == [1, 7]
    assert "RuntimeError" in said, "the script's own traceback stays"
    assert "nantrap: rank 0 lost rank 1, which has ended, has died, or took longer than" in said
    assert said.count(f"{tmp_path / 'run'}/journal-r*.jsonl say what each rank did") == 1
    assert "lost" not in died


def test_an_error_of_another_kind_is_not(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "w = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(w.parameters(), lr=0.1)\n"
        "w(torch.ones(1, 2)).sum().backward()\n"
        "optimizer.step()\n"
        "raise RuntimeError('gloo is a word of mine')\n"
    )
    command = [sys.executable, "-m", "nantrap", "run", "--run-dir", str(tmp_path / "run"), str(script)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    assert "gloo is a word of mine" in done.stderr
    assert "lost" not in done.stderr


def test_ranks_that_drift_apart_are_compared_though_one_is_done_before_the_other_begins(tmp_path: Path) -> None:
    codes, (said, _) = start("rank_ahead.py", tmp_path)
    assert codes == [0, 0]
    differ = "nantrap: the ranks hold different values after 1 step although they train one model: weight, bias"
    assert f"{differ} (NT701 rank_divergence)" in said
