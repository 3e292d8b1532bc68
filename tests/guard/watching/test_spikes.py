"""Spikes of loss and gradient norm: a robust statistic that nothing non-finite can poison."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from guard.loops import NAN, assert_same_state, make_run, state_of
from nantrap import Action, Policy
from nantrap.guard.watching.ranges import SpikeDetector

finite_values = st.floats(-1e30, 1e30, allow_nan=False)
any_values = st.floats(allow_nan=True, allow_infinity=True)


def detector() -> SpikeDetector:
    return SpikeDetector(window=32, threshold=10.0, warmup=16)


@given(st.lists(finite_values, max_size=80), st.lists(st.sampled_from([math.nan, math.inf, -math.inf]), max_size=8))
def test_non_finite_values_leave_no_trace(values: list[float], poison: list[float]) -> None:
    clean, poisoned = detector(), detector()
    for index, value in enumerate(values):
        clean.add(value)
        poisoned.add(value)
        if index < len(poison):
            poisoned.add(poison[index])
    for value in (0.0, 1.0, 1e6, 1e30, *values[:3]):
        assert clean.usual_below(value) == poisoned.usual_below(value)
    assert all(poisoned.usual_below(value) is None for value in (math.nan, math.inf, -math.inf))


@given(st.lists(any_values, min_size=1, max_size=120))
def test_what_is_usual_is_one_of_the_values_and_below_the_spike(values: list[float]) -> None:
    spikes = detector()
    for number, value in enumerate(values):
        usual = spikes.usual_below(value)
        assert usual is None or (usual < value and usual <= max(filter(math.isfinite, values[:number])))
        spikes.add(value)


@given(st.lists(st.floats(0.95, 1.05), min_size=40, max_size=80), st.floats(1e3, 1e30))
def test_one_huge_value_neither_hides_nor_makes_the_next_spike(values: list[float], huge: float) -> None:
    spikes = detector()
    for value in values:
        assert spikes.usual_below(value) is None
        spikes.add(value)
    assert spikes.usual_below(huge) is not None
    spikes.add(huge)
    assert spikes.usual_below(1.0) is None
    assert spikes.usual_below(huge) is not None


def test_the_warm_up_never_spikes_and_ends_when_it_says() -> None:
    spikes = detector()
    for _ in range(15):
        assert spikes.usual_below(1e9) is None
        spikes.add(1.0)
    assert spikes.usual_below(1e9) is None
    spikes.add(1.0)
    assert spikes.usual_below(1e9) is not None


def test_a_surrogate_loss_around_zero_spikes_only_far_beyond_what_it_has_shown() -> None:
    """Most groups of a policy gradient may give a loss of nearly 0, and the others anything."""
    seen = [5e-9, 4e-9, 5e-9, -0.07, 6e-9, 5e-9, 4e-9, 0.05] * 4
    surrogate, positive = detector(), detector()
    for value in seen:
        surrogate.add(value)
        positive.add(abs(value) if abs(value) < 1e-6 else 5e-9)
    assert surrogate.usual_below(0.15) is None
    assert surrogate.usual_below(0.5) == 5e-9
    assert positive.usual_below(0.15) is not None


def test_a_new_level_is_accepted_after_a_while() -> None:
    spikes = detector()
    for _ in range(32):
        spikes.add(1.0)
    accepted = 0
    while spikes.usual_below(50.0) is not None:
        spikes.add(50.0)
        accepted += 1
        assert accepted < 300
    assert accepted > 8


class Scaled(nn.Module):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, factor: Tensor) -> Tensor:
        self.seen += factor
        return (self.weight.square() * factor).sum()


def spiky(policy: Policy, *, spike: float = 1e4, repeats: int = 1, quiet: bool = True):
    run = make_run(
        lambda m: torch.optim.SGD(m.parameters(), lr=1e-6), model=Scaled, loss=lambda m, b: m(b), max_grad_norm=None
    )
    guard = run.guard(policy=policy, quiet=quiet)
    for step in range(60):
        guard.attempt(run.forward, torch.tensor(1.0 + 0.01 * (step % 5)))
    before = state_of(run)
    outcomes = [guard.attempt(run.forward, torch.tensor(spike)) for _ in range(repeats)]
    return run, guard, before, outcomes


def test_warn_reports_and_applies(capsys: pytest.CaptureFixture[str]) -> None:
    _, guard, _, (outcome,) = spiky(Policy(spikes="warn"), quiet=False)
    assert outcome.applied
    assert outcome.incident is None
    assert guard.tally.spikes == 2  # loss and gradient norm
    said = capsys.readouterr().err
    assert "step 60: the loss jumped to 2.999e+04; recent steps had about " in said
    assert "the gradient norm jumped to " in said


def test_off_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    _, guard, _, (outcome,) = spiky(Policy(spikes="off"), quiet=False)
    assert outcome.applied
    assert guard.tally.spikes == 0
    assert capsys.readouterr().err == ""


def test_skip_skips_and_restores() -> None:
    run, _, before, (outcome,) = spiky(Policy(spikes="skip"))
    assert outcome.action is Action.SKIP
    assert outcome.incident is not None
    (finding,) = outcome.incident.findings
    assert (finding.kind, finding.name) == ("spike", "loss")
    assert_same_state(before, state_of(run))


def test_skip_does_not_wait_for_ever_for_the_old_level() -> None:
    _, _, _, outcomes = spiky(Policy(spikes="skip", max_consecutive_skips=3), repeats=6)
    assert [str(outcome.action) for outcome in outcomes[:4]] == ["skip", "skip", "skip", "apply"]


def test_a_nan_in_between_changes_nothing() -> None:
    run = make_run(
        lambda m: torch.optim.SGD(m.parameters(), lr=1e-6), model=Scaled, loss=lambda m, b: m(b), max_grad_norm=None
    )
    guard = run.guard(policy=Policy(spikes="skip", diagnose="off", max_consecutive_skips=100))
    for step in range(120):
        value = NAN if step % 7 == 3 else 1.0 + 0.01 * (step % 5)
        guard.attempt(run.forward, torch.tensor(value))
    assert guard.attempt(run.forward, torch.tensor(1.0)).applied
    assert not guard.attempt(run.forward, torch.tensor(1e4)).applied
