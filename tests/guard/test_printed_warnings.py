"""What a program prints of warnings, on stderr: as many as without a guard, also where steps fail and are run again."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import nantrap

PROGRAM = """
import sys, warnings
import torch, nantrap
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
guarded = sys.argv[1] == "guarded"
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
guard = nantrap.Guard(model, optimizer, quiet=True) if guarded else None
seen = []

def loss_of(z, step):
    if "side effect" in sys.argv[2]:
        seen.append(step)
    if "own" in sys.argv[2]:
        warnings.warn("a warning of the program")
    if "late" in sys.argv[2] and step < 6:
        return z.square().mean() + (torch.log(z.abs().sum() * 0) if step in (3, 4) else 0)
    spread = z[:1].std(0) if "late" in sys.argv[2] or "one" in sys.argv[2] else z.std(0)
    return z.square().mean() + spread.nan_to_num(0).sum() + (torch.log(z.abs().sum() * 0) if step in (3, 4) else 0)

for step in range(8):
    loss = loss_of(model(torch.randn(8, 4)), step)
    if guard is None:
        optimizer.zero_grad()
        loss.backward()
        if loss.isfinite():
            optimizer.step()
    else:
        guard.backward(loss)
        guard.step()
"""


def warnings_of(how: str, what: str) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, how, what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=dict(os.environ))
    return [line.partition(" (")[0] for line in done.stderr.splitlines() if "arning" in line]


@pytest.mark.parametrize("what", ["one value", "one value, side effect", "own", "late, samples"])
def test_a_guard_prints_no_warning_of_its_replays(what: str) -> None:
    assert warnings_of("guarded", what) == warnings_of("plain", what)


def test_a_scaler_that_searches_its_scale_in_the_first_step_brings_no_warning_about_the_schedule() -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    guard = nantrap.Guard(model, optimizer, scheduler=schedule, scaler=scaler, quiet=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = [guard.attempt(lambda x: 1e3 * model(x).square().mean(), torch.ones(2, 4)) for _ in range(3)]
    assert not any(outcome.applied or outcome.incident for outcome in done), "the scale is still too high"
    assert schedule.last_epoch == 3
