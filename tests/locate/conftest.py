"""Training loops of a few steps, run in both forms until their first incident."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

import nantrap
from nantrap import Incident, Policy


def run_until_incident(
    model: nn.Module,
    loss_fn: Callable[[Any], Any],
    batches: Iterable[Any],
    *,
    form: str,
    optimizer: Any = None,
    policy: Policy | None = None,
) -> Incident | None:
    """The first incident of a run, or `None`."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1e-9)
    policy = policy or Policy(diagnose="locate")
    with nantrap.Guard(model, optimizer, max_grad_norm=None, policy=policy, quiet=True) as guard:
        for batch in batches:
            if form == "attempt":
                outcome = guard.attempt(loss_fn, batch)
            else:
                guard.backward(loss_fn(batch))
                outcome = guard.step()
            if outcome.incident is not None:
                return outcome.incident
    return None


@pytest.fixture(params=["attempt", "twoline"])
def first_incident(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`run_until_incident` in both forms; `.form` says which."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return run_until_incident(*args, form=request.param, **kwargs)

    run.form = request.param  # type: ignore[attr-defined]
    return run


@pytest.fixture
def attempt() -> Callable[..., Any]:
    return lambda *args, **kwargs: run_until_incident(*args, form="attempt", **kwargs)


@pytest.fixture
def twoline() -> Callable[..., Any]:
    return lambda *args, **kwargs: run_until_incident(*args, form="twoline", **kwargs)
