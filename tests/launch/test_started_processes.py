"""Processes that `multiprocessing` starts as new interpreters are not guarded, and the summary says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TRAINS = """
import multiprocessing, torch
from torch import nn

def train(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).mean().backward()
        optimizer.step()

if __name__ == "__main__":
    model = nn.Linear(3, 1)
    process = multiprocessing.get_context("spawn").Process(target=train, args=(model,))
    process.start()
    process.join()
"""
LOADS = """
import torch
from torch.utils.data import DataLoader

if __name__ == "__main__":
    for _ in DataLoader(torch.ones(4, 3), num_workers=1, multiprocessing_context="spawn"):
        pass
"""


@pytest.mark.parametrize(("program", "said"), [(TRAINS, True), (LOADS, False)], ids=["trains", "loads"])
def test_a_spawned_process(program: str, said: bool, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(program)
    command = [sys.executable, "-m", "nantrap", "run", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    words = "NOT GUARDED: 1 process that the script started by multiprocessing (spawn)"
    assert (words in done.stderr) is said, done.stderr
    assert "no optimizer made a step" in done.stderr
