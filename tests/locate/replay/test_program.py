"""A program's own generators, attributes and counters: put back for a replay, and left as they were."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn

import nantrap
from nantrap.locate.replay.program import Program, cannot_rewind


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.calls = 0
        self.scale = torch.ones(())
        self.seen: list[int] = []
        self.noise = torch.Generator().manual_seed(1)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        self.scale = self.scale * 0.5
        drop = torch.rand(1, generator=self.noise)
        return self.linear(x) / (drop * 0 + float(self.calls != 3)) * self.scale


def test_everything_is_put_back() -> None:
    module, mine = Counting(), np.random.default_rng(3)
    own = random.Random(5)

    def loss(batch: Tensor) -> Tensor:
        return module(batch).sum() * float(mine.random()) * own.random()

    state = Program([module]).capture(loss, torch.ones(2, 3))
    assert state is not None
    first = loss(torch.ones(2, 3)).item()
    assert "Counting.calls" in state.changed()
    state.restore()
    assert (module.calls, module.seen, float(module.scale)) == (0, [], 1.0)
    assert state.changed() == ()
    assert loss(torch.ones(2, 3)).item() == first


def test_a_program_without_its_own_state_is_quiet() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    program = Program([model])

    def loss(batch: Tensor) -> Tensor:
        return model(batch).sum()

    for _ in range(8):
        assert program.capture(loss, torch.ones(1, 2)) is None
    assert program.quiet
    assert loss.__code__ in program.clean


def test_what_cannot_be_put_back_is_named() -> None:
    schedule = (value for value in (1.0, 0.0))

    def loss(batch: Tensor) -> Tensor:
        return batch * next(schedule)

    assert cannot_rewind(loss) == ("schedule (generator)",)
    assert cannot_rewind(lambda batch: batch) == ()


def test_replays_and_a_skip_leave_no_trace() -> None:
    torch.manual_seed(0)
    module = Counting()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    with nantrap.Guard(module, optimizer, quiet=True) as guard:
        for _ in range(2):
            assert guard.attempt(lambda x: module(x).sum(), torch.ones(2, 3)).applied
        before, noise = (module.calls, list(module.seen), float(module.scale)), module.noise.get_state()
        incident = guard.attempt(lambda x: module(x).sum(), torch.ones(2, 3)).incident
    assert incident is not None
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("division_by_zero", True)
    assert (module.calls, module.seen, float(module.scale)) == before
    assert torch.equal(module.noise.get_state(), noise)
    assert incident.restored is True


class Sampler:
    """Not a module: it counts its calls, as samplers of time steps do."""

    def __init__(self) -> None:
        self.calls = 0
        self.drawn: list[int] = []

    def __call__(self) -> int:
        self.calls += 1
        self.drawn.append(self.calls)
        return self.calls


_all_calls = 0


def test_counters_of_objects_closures_and_globals_are_put_back_for_replays() -> None:
    """The program counts attempts as it wants: a refused step leaves these counters, a replay does not move them."""
    torch.manual_seed(0)
    model, sampler, cell = nn.Linear(3, 1), Sampler(), 0
    drawn = sampler.drawn

    def loss(batch: Tensor) -> Tensor:
        nonlocal cell
        global _all_calls
        cell += 1
        _all_calls += 1
        return (model(batch) / float(sampler() + cell + _all_calls != 9)).sum()

    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), quiet=True) as guard:
        incidents = [guard.attempt(loss, torch.ones(2, 3)).incident for _ in range(4)]
    assert [incident is not None for incident in incidents] == [False, False, True, False]
    assert incidents[2] is not None
    assert (incidents[2].causes[0].slug, incidents[2].causes[0].proven) == ("division_by_zero", True)
    assert (sampler.calls, cell, _all_calls) == (4, 4, 4)
    assert sampler.drawn is drawn
    assert drawn == [1, 2, 3, 4]


def test_without_a_control_that_fails_no_trial_counts() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    temperatures = (value for value in (1.0, 0.0))

    def loss(batch: Tensor) -> Tensor:
        return (model(batch) / torch.tensor(next(temperatures, 1.0))).sum()

    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), quiet=True) as guard:
        guard.attempt(loss, torch.ones(2, 3))
        incident = guard.attempt(loss, torch.ones(2, 3)).incident
    assert incident is not None
    assert {cause.slug for cause in incident.causes} & {"hardware_fault", "compiler_bug"} == set()
    assert not any(trial.finite for trial in incident.trials if trial.name != "again")
