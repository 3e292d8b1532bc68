"""Mistakes that show without any NaN, each with its code: said when they are seen, and in the summary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import nantrap
from launch.loops import Net, batches
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings
from nantrap.launch.summary import RunSummary
from nantrap.pages import find_page


@pytest.fixture
def settings(tmp_path: Path) -> RunSettings:
    return RunSettings(run_dir=str(tmp_path / "run"))


Made = tuple[nn.Module, nn.Module, torch.optim.Optimizer]
"""The module that is called, the one that the optimizer owns, and the optimizer."""


def frozen() -> Made:
    net = Net().requires_grad_(False)
    return nn.Sequential(net, nn.Linear(1, 1)), net, torch.optim.AdamW(net.parameters(), 1e-2)


def made_again() -> Made:
    old = Net()
    return Net(), old, torch.optim.AdamW(old.parameters(), 1e-2)


FROZEN = (
    "no gradient reaches the optimizer: all of its 6 parameters are frozen, requires_grad is False "
    "(NT876 optimizer_frozen)"
)
ANOTHER = (
    "no gradient reaches the optimizer: the loss depends on none of its 6 parameters, but on 6 others. The model was "
    "made, copied or loaded again after the optimizer (NT877 optimizer_of_another_model)"
)
REASONS = {"frozen": (frozen, FROZEN), "made again": (made_again, ANOTHER)}


@pytest.mark.parametrize("name", REASONS)
def test_why_no_gradient_reaches_the_optimizer(
    name: str, settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    make, words = REASONS[name]
    with attached(settings) as attachment:
        net, _, optimizer = make()
        for x, y in batches(30):
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            optimizer.step()
        summary = RunSummary.of(attachment)
    err = capsys.readouterr().err
    assert err.count(f"step 4: {words}") == 1
    assert "NT505" not in err
    assert words in summary.lines(0)


@pytest.mark.parametrize("name", REASONS)
def test_the_same_in_two_lines(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, words = REASONS[name]
    net, owned, optimizer = make()
    guard = nantrap.Guard(owned, optimizer)
    for x, y in batches(8):
        guard.backward(F.mse_loss(net(x), y))
        guard.step()
    assert words in capsys.readouterr().err


def test_gradients_that_come_back_are_said(settings: RunSettings, capsys: pytest.CaptureFixture[str]) -> None:
    with attached(settings) as attachment:
        net, _, optimizer = frozen()
        for number, (x, y) in enumerate(batches(12)):
            if number == 8:
                net.requires_grad_(True)
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            optimizer.step()
        summary = RunSummary.of(attachment)
    assert "step 8: there are gradients again" in capsys.readouterr().err
    assert not any("NT876" in line for line in summary.lines(0))


def twice(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None) -> Callable[[], None]:
    def step() -> None:
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.step()

    return step


@pytest.mark.parametrize("scaled", [False, True])
def test_two_steps_for_one_backward_pass(
    scaled: bool, settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    with attached(settings) as attachment:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0) if scaled else None
        step = twice(optimizer, scaler)
        for x, y in batches(bad=5):
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            (loss if scaler is None else scaler.scale(loss)).backward()
            step()
        summary = RunSummary.of(attachment)
    err = capsys.readouterr().err
    already = ": scaler.step(optimizer) makes it already" if scaled else ""
    words = "optimizer.step() is called twice for each backward pass, so each update is made twice"
    assert f"{words}{already} (NT875 double_step)" in err
    assert "11 updates were made twice (NT875 double_step)" in summary.lines(0)  # the refused one was not made at all
    assert (summary.steps, summary.applied) == (12, 11)


@pytest.mark.parametrize("code", ["NT867", "NT871", "NT875", "NT876", "NT877"])
def test_every_code_has_a_page(code: str) -> None:
    assert "\nFix:\n" in find_page(code).text()
