"""The line of `check_state`: on demand, before an epoch, and under an unchanged loop."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nantrap
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings


def guarded(*, quiet: bool = False) -> tuple[nn.Module, nantrap.Guard]:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, nantrap.Guard(model, optimizer, quiet=quiet)


def test_a_good_state_without_and_with_an_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    _, guard = guarded()
    assert guard.check_state() == []
    guard.set_position(epoch=15)
    assert guard.check_state() == []
    said = capsys.readouterr().err.splitlines()
    # four parameters, and two statistics and the counter of the normalisation
    assert said == ["nantrap: state ok: 7 tensors are finite", "nantrap: parameters ok before epoch 15"]


def test_a_bad_state_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    model, guard = guarded()
    with torch.no_grad():
        model.get_parameter("0.weight")[0, 0] = math.nan
        model.get_buffer("1.running_var")[:] = math.inf
    assert [finding.name for finding in guard.check_state()] == ["0.weight", "1.running_var"]
    guard.set_position(epoch=3)
    guard.check_state()
    what = "parameter 0.weight (1 of 4 values is NaN), buffer 1.running_var (2 of 2 values are +Inf)"
    assert capsys.readouterr().err.splitlines() == [
        f"nantrap: state is not finite: {what}",
        f"nantrap: state is not finite before epoch 3: {what}",
    ]


def test_a_quiet_guard_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    _, guard = guarded(quiet=True)
    assert guard.check_state() == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("asked", ["epoch", "off"])
def test_each_epoch_of_an_unchanged_loop(asked: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    samples = torch.randn(8, 2)
    samples[0] = math.nan  # the first batch of each epoch is bad, and the buffers are so during its forward pass
    loader = DataLoader(TensorDataset(samples), batch_size=4)
    with attached(RunSettings(run_dir=str(tmp_path), check_state=asked, diagnose="off")):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(3):
            for (batch,) in loader:
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
            if epoch == 1:
                with torch.no_grad():
                    model.get_parameter("0.bias")[0] = math.inf
    said = [line for line in capsys.readouterr().err.splitlines() if "before epoch" in line]
    expected = [
        "nantrap: parameters ok before epoch 0",
        "nantrap: parameters ok before epoch 1",
        "nantrap: state is not finite before epoch 2: parameter 0.bias (1 of 2 values is +Inf)",
    ]
    assert said == (expected if asked == "epoch" else [])


def test_a_wrong_word_is_refused() -> None:
    with pytest.raises(nantrap.UsageError, match="check_state is 'batch': choose off, epoch"):
        RunSettings(check_state="batch")
