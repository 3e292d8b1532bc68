"""Budgets: skip, then roll back (or stop), then stop with an error that says what happened."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import nantrap
from guard.loops import FORMS, NAN, Run, assert_same_state, batches, make_run, poison, state_of
from nantrap import Action, BatchChecks, Diagnosis, Policy, Rollback, Skips

QUICK: dict[str, Any] = {"diagnose": "off"}


def actions(run: Run) -> list[str]:
    return [str(outcome.action) for outcome in run.outcomes]


@pytest.mark.parametrize("form", FORMS)
def test_consecutive_skips_then_stop(form: str) -> None:
    run = make_run()
    guard = run.guard(policy=Policy(max_consecutive_skips=3, then="stop", **QUICK))
    FORMS[form](run, guard, run.windows(run.batches[:2]))
    before = state_of(run, rng=False)
    with pytest.raises(nantrap.NonFiniteError) as caught:
        FORMS[form](run, guard, [(poison(run.batches[2]),)] * 10)
    assert actions(run) == ["apply", "apply", "skip", "skip", "skip"]
    assert caught.value.incident.step == 5
    assert caught.value.incident.action is Action.STOP
    assert str(caught.value) == (
        "step 5 stopped: forward: gradient inner.weight: 96 of 96 values are NaN; lr 0.01; "
        "4 incidents in a row, 3 are allowed\n"
        "The step was not applied; parameters, optimizer state and buffers are as before it."
    )
    assert_same_state(before, state_of(run, rng=False))


def test_an_applied_step_ends_the_row() -> None:
    run = make_run()
    guard = run.guard(policy=Policy(max_consecutive_skips=1, skips=Skips(in_window=None), then="stop", **QUICK))
    for _ in range(6):
        guard.attempt(run.forward, poison(run.batches[0]))
        guard.attempt(run.forward, run.batches[0])
    assert guard.tally.applied == 6


def test_skips_in_a_window_then_stop() -> None:
    run = make_run()
    guard = run.guard(policy=Policy(skips=Skips(in_window=3, window=10), then="stop", **QUICK))
    mixed = [(poison(run.batches[0]),), (run.batches[0],)] * 4
    with pytest.raises(nantrap.NonFiniteError, match="4 incidents in 10 steps, 3 are allowed"):
        FORMS["attempt"](run, guard, mixed)
    spread = make_run()
    guard = spread.guard(policy=Policy(skips=Skips(in_window=3, window=10), then="stop", **QUICK))
    for _ in range(6):
        guard.attempt(spread.forward, poison(spread.batches[0]))
        FORMS["attempt"](spread, guard, [(spread.batches[0],)] * 3)


@pytest.mark.parametrize("form", FORMS)
def test_rollback_puts_the_whole_state_back_and_lowers_the_learning_rate(form: str) -> None:
    run = make_run(
        data=batches(12),
        scheduler=lambda o: CosineAnnealingLR(o, T_max=100),
        ema=lambda m: AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True),
    )
    guard = run.guard(policy=Policy(max_consecutive_skips=2, rollback=Rollback(anchor_every=4), **QUICK))
    FORMS[form](run, guard, run.windows(run.batches[:8]))
    at_eight = state_of(run, rng=False)
    FORMS[form](run, guard, run.windows(run.batches[8:10]))
    assert run.outcomes[-1].step == 9
    FORMS[form](run, guard, [(poison(run.batches[10]),)] * 3)
    assert actions(run)[-3:] == ["skip", "skip", "rollback"]
    assert run.outcomes[-1].incident is not None
    now = state_of(run, rng=False)
    rates = ("group 0.lr", "group 0.initial_lr", "scheduler base_lrs")  # halved; everything else as it was
    assert now["group 0.lr"] == pytest.approx(at_eight["group 0.lr"] * 0.5)
    assert now["scheduler base_lrs"] == pytest.approx([0.005])
    for name in rates:
        del at_eight[name], now[name]
    assert_same_state(at_eight, now)
    FORMS[form](run, guard, run.windows(run.batches[10:12]))
    assert run.outcomes[-1].applied
    assert guard.tally.rollbacks == 1


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda o: CosineAnnealingLR(o, T_max=40),
        lambda o: OneCycleLR(o, max_lr=0.1, total_steps=60),
        lambda o: LambdaLR(o, lambda step: 1 / (1 + step)),
        None,
    ],
    ids=["cosine", "one_cycle", "lambda", "none"],
)
def test_the_lower_learning_rate_stays_lower_under_a_scheduler(scheduler: Any) -> None:
    parts = {} if scheduler is None else {"scheduler": scheduler}
    clean, run = make_run(**parts), make_run(**parts)
    clean_guard = clean.guard()
    guard = run.guard(policy=Policy(max_consecutive_skips=0, rollback=Rollback(anchor_every=1), **QUICK))
    for r, g in ((clean, clean_guard), (run, guard)):
        FORMS["attempt"](r, g, r.windows(r.batches[:3]))
    guard.attempt(run.forward, poison(run.batches[3]))
    assert guard.tally.rollbacks == 1
    for batch in run.batches[3:8]:
        expected = clean.optimizer.param_groups[0]["lr"] / 2
        assert run.optimizer.param_groups[0]["lr"] == pytest.approx(expected, rel=1e-6)
        clean_guard.attempt(clean.forward, batch)
        guard.attempt(run.forward, batch)


def test_each_rollback_lowers_the_learning_rate_further_until_they_are_used_up() -> None:
    run = make_run()
    guard = run.guard(
        policy=Policy(max_consecutive_skips=1, max_rollbacks=2, rollback=Rollback(anchor_every=2), **QUICK)
    )
    FORMS["attempt"](run, guard, run.windows(run.batches[:5]))
    words = "2 incidents in a row, 1 is allowed, and 2 rollbacks are used up"
    with pytest.raises(nantrap.NonFiniteError, match=words):
        FORMS["attempt"](run, guard, [(poison(run.batches[5]),)] * 20)
    assert actions(run)[5:] == ["skip", "rollback", "skip", "rollback", "skip"]
    rates = [record.lr[0] for record in guard.history][5:]
    assert rates == pytest.approx([0.01, 0.01, 0.005, 0.005, 0.0025, 0.0025])
    assert all(torch.isfinite(p).all() for p in run.model.parameters())


def test_without_an_anchor_there_is_nothing_to_go_back_to() -> None:
    run = make_run()
    guard = run.guard(policy=Policy(max_consecutive_skips=0, rollback=Rollback(anchor_every=0), **QUICK))
    with pytest.raises(nantrap.NonFiniteError, match="and there is no older state to roll back to"):
        guard.attempt(run.forward, poison(run.batches[0]))


def test_a_state_that_was_bad_is_no_anchor() -> None:
    run = make_run()
    with torch.no_grad():
        run.model.head.weight[0, 0] = NAN
    guard = run.guard(policy=Policy(max_consecutive_skips=1, **QUICK))
    with pytest.raises(nantrap.NonFiniteError, match="and there is no older state to roll back to"):
        FORMS["attempt"](run, guard)


def test_a_rollback_does_not_repair_the_data() -> None:
    run = make_run()
    guard = run.guard(policy=Policy(batches=BatchChecks(finite=True), max_consecutive_skips=1))
    with pytest.raises(nantrap.NonFiniteError, match="and the batch is at fault, not the state"):
        FORMS["attempt"](run, guard, [(poison(run.batches[0]),)] * 3)


def test_a_buffer_that_the_forward_pass_replaces_is_rolled_back_in_its_place() -> None:
    run = make_run()
    guard = run.guard(policy=Policy(max_consecutive_skips=0, rollback=Rollback(anchor_every=4), **QUICK))
    FORMS["two_line"](run, guard, run.windows(run.batches[:4]))
    at_four = run.model.replaced.clone()
    FORMS["two_line"](run, guard, run.windows(run.batches[4:6]))
    assert not torch.equal(run.model.replaced, at_four)
    FORMS["two_line"](run, guard, [(poison(run.batches[6]),)])
    assert run.outcomes[-1].action is Action.ROLLBACK
    assert torch.equal(run.model.replaced, at_four)


@pytest.mark.parametrize("form", FORMS)
def test_the_scaler_is_rolled_back_too(form: str) -> None:
    run = make_run(autocast=torch.float16, scaler=lambda: torch.amp.GradScaler("cpu", 64.0, growth_interval=3))
    guard = run.guard(policy=Policy(max_consecutive_skips=0, rollback=Rollback(anchor_every=100), **QUICK))
    FORMS[form](run, guard, run.windows(run.batches[:5]))
    assert run.scaler.get_scale() == 128.0
    FORMS[form](run, guard, [(poison(run.batches[6]),)])
    assert run.outcomes[-1].action is Action.ROLLBACK
    assert run.scaler.get_scale() == 64.0


@pytest.mark.parametrize("form", FORMS)
def test_strict_raises_at_the_first_incident_with_everything_as_before(form: str) -> None:
    run = make_run()
    guard = run.guard(policy=Policy.strict())
    FORMS[form](run, guard, run.windows(run.batches[:3]))
    before = state_of(run, rng=False)
    with pytest.raises(nantrap.NonFiniteError, match="the policy stops at the first incident") as caught:
        FORMS[form](run, guard, [(poison(run.batches[3]),)])
    assert isinstance(caught.value, nantrap.NantrapError)
    assert caught.value.incident.phase == "data"
    assert caught.value.incident.step == 3
    assert_same_state(before, state_of(run, rng=False))


def test_batches_without_a_label_in_a_row_stop_the_run() -> None:
    def labels(model: nn.Module, batch: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(batch), torch.full((8,), -100))

    run = make_run(loss=labels, data=[x for x, _ in batches(1)])
    guard = run.guard(policy=Policy(skips=Skips(window=5), **QUICK))
    with pytest.raises(nantrap.NonFiniteError, match="6 incidents in a row, 5 are allowed; the gradients were finite"):
        FORMS["attempt"](run, guard, [(run.batches[0],)] * 10)
    assert len(run.outcomes) == 5


def test_observe_never_skips() -> None:
    run = make_run()
    guard = run.guard(policy=Policy.observe(max_consecutive_skips=0, **QUICK))
    FORMS["attempt"](run, guard, [(poison(run.batches[0]),)] * 3)
    assert actions(run) == ["apply"] * 3
    assert all(outcome.incident is not None for outcome in run.outcomes)


def test_observe_with_an_optimizer_that_makes_nan_under_a_scaler() -> None:
    class Broken(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            with torch.no_grad():
                self.param_groups[0]["params"][0][0, 0] = NAN

    run = make_run(lambda m: Broken(m.parameters(), lr=0.1), scaler=lambda: torch.amp.GradScaler("cpu", 8.0))
    outcome = run.guard(policy=Policy.observe(**QUICK)).attempt(run.forward, run.batches[0])
    assert outcome.applied
    assert outcome.incident is not None
    assert outcome.incident.phase == "optimizer"
    assert torch.isnan(run.model.inner.weight[0, 0])


def test_an_incident_that_looks_the_same_refers_back() -> None:
    run = make_run()
    guard = run.guard(policy=Policy(max_consecutive_skips=10, diagnosis=Diagnosis(repeats=2)))
    FORMS["attempt"](run, guard, [(poison(run.batches[0]),)] * 4)
    incidents = [outcome.incident for outcome in run.outcomes]
    assert [incident.same_as for incident in incidents if incident] == [None, None, 0, 0]


@pytest.mark.parametrize("form", FORMS)
def test_another_operation_or_another_cause_does_not_look_the_same(form: str) -> None:
    """The same loss and the same gradients are bad each time; what made them so is not the same."""

    def loss(model: nn.Module, batch: tuple[Tensor, str]) -> Tensor:
        x, kind = batch
        y = model(x).square().mean()
        if kind == "log":
            return y + (y * 0).log()
        if kind == "division":
            return y + y / (y * 0)
        if kind == "overflow":  # the same operation as "division", on other operands
            return y + (y * 0 + 1e38) / (y * 0 + 1e-38)
        return y

    run = make_run(loss=loss)
    guard = run.guard(policy=Policy(max_consecutive_skips=20, diagnosis=Diagnosis(repeats=1)))
    kinds = ["log", "log", "division", "log", "division", "overflow"]
    FORMS[form](run, guard, [((run.batches[i][0], kind),) for i, kind in enumerate(kinds)])
    same = [outcome.incident.same_as for outcome in run.outcomes if outcome.incident is not None]
    assert same == [None, 0, None, 0, 2, None]
    again = run.outcomes[1].incident
    assert again is not None
    assert again.notes[0] == "looks like the incident of step 0 (same place, same evidence): no trials were run"


def test_a_skip_prints_one_line_and_the_end_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run()
    guard = run.guard(quiet=False, policy=Policy(**QUICK))
    guard.attempt(run.forward, run.batches[0])
    assert capsys.readouterr().err == ""
    guard.attempt(run.forward, poison(run.batches[1]))
    assert capsys.readouterr().err == (
        "nantrap: step 1 skipped: forward: gradient inner.weight: 96 of 96 values are NaN; lr 0.01; 1 of 5 in a row\n"
    )
    guard.close()
    guard.close()
    assert capsys.readouterr().err == (
        "nantrap: 2 steps, 1 applied (50.0 %)\n"
        "1 incident, 1 skipped step, 0 rollbacks\n"
        "  1 × undiagnosed\n"
    )  # fmt: skip


def infinite_loss(run: Run, batch: Any) -> Any:
    """Inf, with finite gradients."""
    return run.forward(batch) + math.inf


def attempts(run: Run, guard: nantrap.Guard, count: int) -> None:
    for _ in range(count):
        guard.attempt(lambda batch: infinite_loss(run, batch), run.batches[2])


def test_the_limit_holds_for_losses_whose_gradients_are_finite() -> None:
    run = make_run()
    guard = run.guard(policy=Policy(max_consecutive_skips=3, **QUICK))
    FORMS["attempt"](run, guard, run.windows(run.batches[:2]))
    with pytest.raises(nantrap.NonFiniteError, match="4 incidents in a row, 3 are allowed; the gradients were finite"):
        attempts(run, guard, 10)
    assert guard.tally.rollbacks == 0


def test_losses_with_finite_gradients_that_come_now_and_then_never_end_a_run() -> None:
    run = make_run()
    guard = run.guard(policy=Policy(max_consecutive_skips=1, skips=Skips(in_window=2), **QUICK))
    for _ in range(8):
        attempts(run, guard, 1)
        guard.attempt(run.forward, run.batches[0])
    assert guard.tally.applied == 8
