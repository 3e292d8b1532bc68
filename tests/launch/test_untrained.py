"""A run in which most steps are skipped does not end with exit code 0, whoever skipped them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import math, torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
scaler = torch.amp.GradScaler("cpu", init_scale={scale}, enabled={scaled})
for step in range(24):
    optimizer.zero_grad()
    loss = net(torch.randn(8, 4)).pow(2).mean()
    if step % 24 >= {good}:
        loss = loss * {factor}
    if {asks} and not torch.isfinite(loss):
        continue
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
HEALTHY = {"scale": 1.0, "scaled": False, "good": 24, "factor": "math.nan", "asks": False}


def ended(tmp_path: Path, **changed: object) -> tuple[int, str]:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.format(**(HEALTHY | changed)))
    command = [sys.executable, "-m", "nantrap", "run", "--diagnose", "off", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"asks": True, "good": 4}, "only 4 of 24 were applied", id="script"),
        pytest.param({"asks": True, "good": 0}, "none of 24 were applied", id="script, always"),
        pytest.param({"scaled": True, "scale": 2.0**120, "good": 0, "factor": "2.0**40"}, "of 24", id="scaler"),
    ],
)
def test_most_steps_skipped(changed: dict[str, object], said: str, tmp_path: Path) -> None:
    code, words = ended(tmp_path, **changed)
    assert code == 1, words
    assert "MOST STEPS WERE SKIPPED: " in words
    assert said in words
    assert "the run failed" in words


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({}, id="healthy"),
        pytest.param({"asks": True, "good": 13}, id="script, some"),
        pytest.param({"scaled": True, "scale": 2.0**127}, id="scaler, at first"),
    ],
)
def test_some_steps_skipped(changed: dict[str, object], tmp_path: Path) -> None:
    code, words = ended(tmp_path, **changed)
    assert code == 0, words
    assert "MOST STEPS" not in words


def test_the_guard_stops_at_its_limit(tmp_path: Path) -> None:
    code, words = ended(tmp_path, good=8)
    assert code == 3
    assert "6 incidents in a row, 5 are allowed" in words
