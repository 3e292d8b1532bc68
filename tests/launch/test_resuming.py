"""What a script loads is compared with what it configured, once, before the first step after it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from nantrap.launch.attach import attached
from nantrap.launch.settings import Settings


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()


def test_a_restored_learning_rate_that_overrides_the_configured_one_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = nn.Linear(3, 2)
    saved = torch.optim.AdamW(old.parameters(), lr=4.92e-4)
    step(old, saved)
    with attached(Settings(run_dir=str(tmp_path))):
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        optimizer.load_state_dict(saved.state_dict())
        step(model, optimizer)
        step(model, optimizer)
    err = capsys.readouterr().err
    words = (
        "nantrap: resume: the learning rate is 0.000492, the configuration says 0.0001: "
        "the restored optimizer state overrides it"
    )
    assert err.count(words) == 1


def test_the_learning_rate_of_a_schedule_is_no_surprise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def made() -> tuple[nn.Module, torch.optim.Optimizer, OneCycleLR]:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return model, optimizer, OneCycleLR(optimizer, max_lr=1e-3, total_steps=20)

    model, optimizer, scheduler = made()
    for _ in range(5):
        step(model, optimizer)
        scheduler.step()
    states = optimizer.state_dict(), scheduler.state_dict()
    with attached(Settings(run_dir=str(tmp_path))):
        model, optimizer, scheduler = made()
        optimizer.load_state_dict(states[0])
        scheduler.load_state_dict(states[1])
        step(model, optimizer)
    assert "resume:" not in capsys.readouterr().err


def test_a_poisoned_state_is_named_when_it_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = nn.Linear(3, 2).state_dict()
    bad["weight"][0, 0] = float("nan")
    with attached(Settings(run_dir=str(tmp_path))):
        nn.Linear(3, 2).load_state_dict(bad)
    assert (
        "nantrap: resume: the state that was loaded into Linear is not finite: weight; "
        "`nantrap audit` finds the last good checkpoint" in capsys.readouterr().err
    )
