"""A gradient norm that overflows though every gradient is finite: a fault only where something clips by it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap import Outcome
from nantrap.launch.attach import attached
from nantrap.launch.settings import Settings
from nantrap.record import open_run

UNIT = 1e13


def step(prepare: Callable[[torch.optim.Optimizer], Any] = lambda optimizer: None, **guarded: Any) -> Outcome:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-30)
    prepare(optimizer)
    with nantrap.Guard(model, optimizer, quiet=True, **guarded) as guard:
        return guard.attempt(lambda batch: (model(batch) * UNIT).square().mean(), torch.randn(8, 4))


def test_where_nothing_clips_the_step_is_applied_and_its_norm_is_known() -> None:
    outcome = step(max_grad_norm=None)
    assert outcome.applied
    assert outcome.incident is None
    assert 1e25 < outcome.grad_norm < 1e28  # its square is beyond float32


def _clip_by_hook(optimizer: torch.optim.Optimizer) -> None:
    def clip(*_: Any) -> None:
        nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)

    optimizer.register_step_pre_hook(clip)


@pytest.mark.parametrize(
    ("prepare", "guarded"),
    [(lambda optimizer: None, {"max_grad_norm": 1.0}), (_clip_by_hook, {"max_grad_norm": None})],
    ids=["guard", "hook"],
)
def test_where_something_clips_the_step_is_refused(prepare: Any, guarded: dict[str, Any]) -> None:
    outcome = step(prepare, **guarded)
    assert not outcome.applied
    assert outcome.incident is not None
    assert outcome.incident.causes[0].slug == "grad_norm_overflow"


def train(form: str, folder: Path, *, clips_from: int, steps: int = 5) -> tuple[nn.Linear, list[bool]]:
    """Train with a hook that clips from some step on. Returns the model and which steps were applied."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    data = [torch.randn(8, 4) for _ in range(steps)]
    calls = 0

    def clip(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > clips_from:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    def loss_of(batch: Tensor) -> Tensor:
        loss: Tensor = (model(batch) * UNIT).square().mean()
        return loss

    def optimizer() -> torch.optim.Optimizer:
        made = torch.optim.SGD(model.parameters(), lr=1e-30, momentum=0.9)
        made.register_step_pre_hook(clip)
        return made

    if form in ("plain", "run"):
        with attached(Settings(run_dir=str(folder), quiet=True)) if form == "run" else contextlib.nullcontext():
            own = optimizer()
            for batch in data:
                own.zero_grad()
                loss_of(batch).backward()
                own.step()
        return model, open_run(folder).series[0].applied.tolist() if form == "run" else [True] * steps
    applied = []
    with nantrap.Guard(model, optimizer(), max_grad_norm=None, quiet=True) as guard:
        for batch in data:
            if form == "attempt":
                applied.append(guard.attempt(loss_of, batch).applied)
            else:
                guard.backward(loss_of(batch))
                applied.append(guard.step().applied)
    return model, applied


@pytest.mark.parametrize("form", ["attempt", "two lines", "run"])
def test_a_hook_that_does_not_clip_changes_nothing(form: str, tmp_path: Path) -> None:
    model, applied = train(form, tmp_path, clips_from=10**6)
    assert all(applied)
    assert torch.equal(model.weight, train("plain", tmp_path, clips_from=10**6)[0].weight)


@pytest.mark.parametrize("form", ["attempt", "two lines", "run"])
def test_a_hook_that_clips_to_zero_is_refused_when_it_does(form: str, tmp_path: Path) -> None:
    model, applied = train(form, tmp_path, clips_from=2)
    assert applied == [True, True, False, False, False]
    assert torch.equal(model.weight, train("plain", tmp_path, clips_from=10**6, steps=2)[0].weight)


def test_without_an_undo_a_hook_that_may_clip_is_not_tried() -> None:
    prepare: Any = lambda optimizer: optimizer.register_step_pre_hook(lambda *_: None)  # noqa: E731
    assert step(prepare, max_grad_norm=None).applied
    assert not step(prepare, max_grad_norm=None, policy=nantrap.Policy(undo="never")).applied


def test_a_gradient_that_is_infinite_is_not_about_the_norm() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-30), max_grad_norm=None, quiet=True) as guard:

        def loss_of(batch: Tensor) -> Tensor:
            return (model(batch) * 1e30).square().mean() * 1e-30

        outcome = guard.attempt(loss_of, torch.randn(8, 4))
    assert not outcome.applied
