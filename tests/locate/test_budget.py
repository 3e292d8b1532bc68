"""How long a diagnosis may take. The time is counted by the tests: nothing here depends on the machine."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap import Diagnosis, Policy
from nantrap.locate.budget import Budget


def counted(tick: float) -> Callable[[], float]:
    """A clock that goes on by `tick` whenever it is read."""
    ticks = itertools.count()
    return lambda: tick * next(ticks)


def still() -> float:
    """A clock that stands."""
    return 0.0


@pytest.mark.parametrize(
    ("seconds", "step", "wanted", "words"),
    [
        (60.0, 0.001, 20.0, "the budget of 20 s"),  # however short the steps are
        (60.0, 2.0, 40.0, "the budget of 20 steps"),
        (60.0, 5.0, 60.0, "the budget of 60 s"),
        (1.0, 0.001, 1.0, "the budget of 1 s"),
    ],
)
def test_steps_and_seconds(seconds: float, step: float, wanted: float, words: str) -> None:
    budget = Budget(seconds, step=step, clock=still)
    assert budget.seconds == wanted
    assert str(budget) == words
    assert not budget.spent


def test_what_takes_too_many_steps_is_not_begun() -> None:
    budget = Budget(step=2.0, clock=still)
    assert budget.allows(19)
    assert not budget.allows(40)


def test_what_takes_many_short_steps_is_begun_on_a_slow_machine_too() -> None:
    assert Budget(step=0.4, clock=still).allows(80)
    assert not Budget(step=0.4, clock=still).allows(200)


def test_a_part_ends_before_the_whole() -> None:
    clock = counted(2.0)
    budget = Budget(step=1.0, clock=clock)
    part = budget.part(1 / 3)
    assert part.seconds == pytest.approx(20 / 3)
    assert [part.spent for _ in range(3)] == [False, False, True]
    assert not budget.spent


def test_a_slow_first_step_is_learned() -> None:
    budget = Budget(clock=still)
    budget.learn(2.0)
    assert budget.seconds == 40.0
    budget.learn(1.0)
    assert budget.seconds == 40.0


def failures(policy: Policy, steps: int = 1) -> list[nantrap.Incident]:
    """The incidents of a model whose every step takes the logarithm of 0."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)

    def loss(batch: Tensor) -> Tensor:
        return torch.log(model(batch).relu() * 0).mean()

    found = []
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), policy=policy, quiet=True) as guard:
        for _ in range(steps):
            outcome = guard.attempt(loss, torch.ones(8, 4))
            if outcome.incident is not None:
                found.append(outcome.incident)
    return found


def test_what_the_budget_left_out_is_said() -> None:
    (incident,) = failures(Policy(diagnosis=Diagnosis(seconds=4.0, clock=counted(1.0))))
    assert incident.op == "aten.log"  # the place is found in any case
    assert not any(cause.proven and cause.fix is not None and cause.fix.verified for cause in incident.causes)
    (said,) = [note for note in incident.notes if note.startswith("not tried: ")]
    assert said.endswith(": the budget of 4 s was spent")


def test_nothing_is_left_out_in_time() -> None:
    (incident,) = failures(Policy(diagnosis=Diagnosis(clock=still)))
    assert incident.causes[0].proven
    assert not any(note.startswith("not tried: ") for note in incident.notes)


def test_the_same_failure_again_is_compared_and_not_tried() -> None:
    policy = Policy(max_consecutive_skips=10, diagnosis=Diagnosis(repeats=1, clock=still))
    first, second, third = failures(policy, steps=3)
    assert (first.same_as, second.same_as, third.same_as) == (None, 0, 0)
    assert first.trials
    assert not second.trials


def test_a_run_that_is_mostly_diagnosed_runs_no_step_again() -> None:
    policy = Policy(max_consecutive_skips=10, diagnosis=Diagnosis(seconds=60.0, repeats=9, clock=counted(5.0)))
    incidents = failures(policy, steps=4)
    assert incidents[0].op == "aten.log"
    assert incidents[-1].op is None
    assert incidents[-1].notes[0].startswith("not run again: diagnoses have taken ")
