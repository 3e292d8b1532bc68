"""A script that trains many models one after another: a guard lives as long as the script has its optimizer."""

from __future__ import annotations

import gc
import math
import weakref
from pathlib import Path

import torch
from torch import nn

from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings
from nantrap.launch.summary import RunSummary


def train(*, bad: bool = False) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Two steps of a model of its own."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).square().mean().backward()
        optimizer.step()
    if bad:
        with torch.no_grad():
            model.weight[0, 0] = math.nan
    return model, optimizer


def test_guards_of_dropped_optimizers_end_and_are_counted(tmp_path: Path) -> None:
    with attached(RunSettings(run_dir=str(tmp_path), quiet=True)) as attachment:
        first: weakref.ref[nn.Module] | None = None
        for number in range(40):
            model, optimizer = train(bad=number == 3)
            first = first or weakref.ref(model)
        del model, optimizer
        gc.collect()
        assert len(attachment.registry.guards) <= 17
        assert len(attachment.registry.known) <= 17
        assert first is not None
        assert first() is None
        summary = RunSummary.of(attachment)
    assert (summary.steps, summary.applied, summary.optimizers) == (80, 80, 40)
    assert summary.bad == ("weight",)
    assert len(list(tmp_path.glob("**/journal-r0.jsonl"))) == 40


def test_guards_of_optimizers_that_the_script_keeps_stay(tmp_path: Path) -> None:
    """In a list, in a dictionary, in a local variable, in a schedule: every one can make another step."""
    with attached(RunSettings(run_dir=str(tmp_path), quiet=True)) as attachment:
        pairs = [train() for _ in range(10)]
        by_name = {str(number): train()[1] for number in range(10)}
        schedules = [torch.optim.lr_scheduler.StepLR(train()[1], 10) for _ in range(10)]
        _, local = train()
        for _ in range(40):
            train()
        kept = [pair[1] for pair in pairs] + list(by_name.values()) + [each.optimizer for each in schedules] + [local]
        guarded = {id(loop.optimizer) for loop in attachment.registry.guards}
        assert all(id(optimizer) in guarded for optimizer in kept)
        assert len(attachment.registry.guards) < 31 + 40
