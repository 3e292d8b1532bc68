"""A batch that the loop cuts out of its data by itself, or that a function takes as `*args`, is the batch: its bad
samples are named. Next door: what the loop computes from finite data is no data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap import Incident


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Loop:
    """A model with its guard, and data for four batches of six samples."""

    def __init__(self, value: float = math.nan) -> None:
        torch.manual_seed(0)
        self.inputs, self.targets = torch.rand(24, 2) + 0.5, torch.randn(24, 1)
        self.inputs[15, 1] = value
        self.model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.guard = nantrap.Guard(self.model, optimizer, run_dir=None, quiet=True)

    @property
    def incident(self) -> Incident:
        """The one incident."""
        assert self.guard.tally.incidents == 1
        found = self.guard.last_incident
        assert found is not None
        return found


def by_slices(loop: Loop) -> None:
    x, y = loop.inputs, loop.targets
    for i in range(0, 24, 6):
        xb, yb = x[i : i + 6], y[i : i + 6]
        loss = ((loop.model(xb) - yb) ** 2).mean()
        loop.guard.backward(loss)
        loop.guard.step()


def by_indices(loop: Loop) -> None:
    order = torch.arange(24)
    for i in range(0, 24, 6):
        part = order[i : i + 6]
        xb = loop.inputs[part]
        yb = loop.targets[part]
        loss = ((loop.model(xb) - yb) ** 2).mean()
        loop.guard.backward(loss)
        loop.guard.step()


def by_a_function(loop: Loop) -> None:
    drawn = iter(torch.arange(24).split(6))

    def get_batch() -> tuple[Tensor, Tensor]:
        torch.rand(1)
        part = next(drawn)
        return loop.inputs[part], loop.targets[part]

    for _ in range(4):
        xb, yb = get_batch()
        loss = ((loop.model(xb) - yb) ** 2).mean()
        loop.guard.backward(loss)
        loop.guard.step()


def by_arguments(loop: Loop) -> None:
    def update(*args: Any) -> None:
        loss = nn.functional.mse_loss(loop.model(args[0]), args[1])
        loop.guard.backward(loss)
        loop.guard.step()

    for part in torch.arange(24).split(6):
        update(loop.inputs[part], loop.targets[part])


@pytest.mark.parametrize("program", [by_slices, by_a_function, by_arguments])
def test_the_bad_sample_is_named(program: Callable[[Loop], None]) -> None:
    loop = Loop()
    program(loop)
    incident = loop.incident
    assert (incident.step, incident.phase, incident.samples) == (2, "data", (3,))
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("bad_input_data", True)
    assert not any("sample dimension" in note or "no part of the batch" in note for note in incident.notes)
    name = "batch[0]" if program is by_arguments else "xb"
    assert f"the input batch already contains NaN: {name}" in incident.causes[0].summary


def test_the_bad_sample_is_named_where_the_loop_draws_indices() -> None:
    """The indices are the batch; whether the data are a table for all batches is not known."""
    loop = Loop()
    by_indices(loop)
    assert (loop.incident.step, loop.incident.samples) == (2, (3,))


def test_what_the_loop_computes_from_finite_data_is_no_data() -> None:
    """Next door: the root is to blame, and not what it was computed from."""
    loop = Loop(-1.0)
    for i in range(0, 24, 6):
        xb, yb = loop.inputs[i : i + 6].sqrt(), loop.targets[i : i + 6]
        loss = ((loop.model(xb) - yb) ** 2).mean()
        loop.guard.backward(loss)
        loop.guard.step()
    incident = loop.incident
    assert (incident.op, incident.causes[0].slug) == ("aten.sqrt", "domain_error")


def test_a_number_that_the_loop_computes_is_no_batch() -> None:
    """Next door: it is computed by statements that cannot be run again, so what made it bad is not known."""
    loop = Loop(1.0)
    factors = iter([1.0, 1.0, math.nan])
    for i in range(0, 18, 6):
        xb = loop.inputs[i : i + 6]
        scale = next(factors) * xb.std()
        loss = (loop.model(xb) * scale).mean()
        loop.guard.backward(loss)
        loop.guard.step()
    cause = loop.incident.causes[0]
    assert not cause.proven
    assert "the batch is non-finite" not in cause.summary


def test_a_step_that_reads_no_batch_says_so() -> None:
    """Next door: nothing is said of a sample dimension where no batch is known."""
    torch.manual_seed(0)
    table = torch.rand(4, 3)
    table[1, 2] = math.nan
    weight = nn.Linear(3, 1)
    guard = nantrap.Guard(weight, torch.optim.SGD(weight.parameters(), lr=1e-3), run_dir=None, quiet=True)
    for _ in range(1):
        guard.backward(weight(table).square().mean())
        guard.step()
    assert guard.last_incident is not None
    assert not any("sample dimension" in note for note in guard.last_incident.notes)
