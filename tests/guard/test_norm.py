"""A gradient norm that overflows though every gradient is finite: a fault only where something clips by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap import Outcome

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


def test_a_gradient_that_is_infinite_is_not_about_the_norm() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-30), max_grad_norm=None, quiet=True) as guard:

        def loss_of(batch: Tensor) -> Tensor:
            return (model(batch) * 1e30).square().mean() * 1e-30

        outcome = guard.attempt(loss_of, torch.randn(8, 4))
    assert not outcome.applied
