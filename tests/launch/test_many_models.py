"""A script that trains many models one after another: a guard lives as long as the script has its optimizer."""

from __future__ import annotations

import gc
import math
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

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


def test_a_few_large_models_are_not_kept_either(tmp_path: Path) -> None:
    """Each takes 24 MB for parameters and state, and as much for each older state that is kept."""
    with attached(RunSettings(run_dir=str(tmp_path), quiet=True)) as attachment:
        for _ in range(8):
            model = nn.Linear(2000, 1000)
            optimizer = torch.optim.Adam(model.parameters())
            for _ in range(10):
                model(torch.ones(1, 2000)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        held = sum(loop.session.anchors.nbytes for loop in attachment.registry.guards)
    assert held < 400 * 2**20


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


@pytest.mark.parametrize("keeps", [True, False])
def test_a_second_optimizer_over_the_same_parameters_tells_a_bad_step_once(tmp_path: Path, keeps: bool) -> None:
    """The first one makes no step any more: the micro-batches of the second are not added up for it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 2), nn.Linear(2, 1))
    with attached(RunSettings(run_dir=str(tmp_path), quiet=True)) as attachment:
        first = optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)  # the head alone, then the whole model
        seen: list[weakref.ref[Tensor]] = []
        for step in range(30):
            if step == 3:
                optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
                first = first if keeps else optimizer
            batch = torch.randn(8, 64)
            seen.append(weakref.ref(batch))
            if step == 20:
                batch[3, 1] = math.nan
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        summary = RunSummary.of(attachment)
        assert sum(each() is not None for each in seen[3:20]) <= 8  # what the guard keeps of good steps
    assert (summary.steps, summary.applied, summary.incidents) == (30, 29, 1)


def test_a_step_that_never_comes_holds_few_batches(tmp_path: Path) -> None:
    """Gradients for saliency maps, or very many micro-batches: the last are kept for a replay, and small ones."""
    model = nn.Linear(20_000, 1)
    seen: list[weakref.ref[Tensor]] = []
    with attached(RunSettings(run_dir=str(tmp_path), quiet=True)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(60):
            batch = torch.randn(8, 20_000)
            seen.append(weakref.ref(batch))
            model(batch).square().mean().backward()
        del batch
        assert 16 <= sum(each() is not None for each in seen) <= 17
        optimizer.step()
