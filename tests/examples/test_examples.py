"""Every example runs as it is, and prints what it is there to show."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

SHOWS = {
    "two_lines.py": ["step 7 was skipped: log_of_zero", "all weights are finite: True"],
    "masked_row.py": ["step 3 was skipped; its loss was 3.9"],
    "attempt.py": ["step 4: softmax_fully_masked_row, proven: True, samples: (2,)"],
    "mixed_precision.py": ["step 6 was skipped: ", "loss scale: 1024"],
    "accumulation.py": ["step 3: applied True", "dropped micro-batches: 1"],
    "resume.py": ["not saved: ", "resumed after step 20; the weights are finite: True"],
}
RUN_BY_OTHER_TESTS = {"ddp.py"}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*SHOWS, *RUN_BY_OTHER_TESTS}


@pytest.mark.parametrize("name", SHOWS)
def test_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capsys.readouterr().out
    for sentence in SHOWS[name]:
        assert sentence in printed


def test_two_ranks_skip_together() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(EXAMPLES / "ddp.py")], check=False, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "applied 7 of 8 steps; both ranks have the same weights: True" in done.stdout
