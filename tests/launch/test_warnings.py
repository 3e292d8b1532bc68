"""Warnings that PyTorch gives once for a line are given once, however often a step is run again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import warnings
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(12):
    x = torch.randn(8, 4)
    if step % 3 == 2:
        x[0, 0] = float("nan")
    loss = nn.functional.mse_loss(model(x), torch.randn(8))
    warnings.warn("a word of the script")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
warnings.warn("the end")
"""


def test_a_replay_neither_gives_nor_repeats_a_warning(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    said = []
    for runner in ([], ["-m", "nantrap", "run", "--run-dir", str(tmp_path / "run")]):
        command = [sys.executable, *runner, str(script)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
        said.append({w: done.stderr.count(w) for w in ("UserWarning: Using a target", "a word of", "the end")})
    plain, guarded = said
    assert guarded == plain
    assert plain["UserWarning: Using a target"] == 1
