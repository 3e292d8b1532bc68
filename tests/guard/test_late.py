"""`Policy(sync="late")`: no host read in the step, the skip happens on the device, the host learns a step later."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import nantrap
from guard.loops import FORMS, INF, NAN, Run, assert_same_state, batches, make_run, mse, poison, state_of, train_plain
from nantrap import Action, Policy, Skips

OPTIMIZERS = {
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=1e-2, fused=True),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=1e-2, fused=True),
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=1e-2, fused=True),
}
LATE = Policy(sync="late")


def full_run(name: str = "adamw", **parts: Any) -> Run:
    return make_run(
        OPTIMIZERS[name],
        scheduler=lambda o: OneCycleLR(o, max_lr=0.1, total_steps=50, cycle_momentum="betas" in o.defaults),
        ema=lambda m: AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True),
        **parts,
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_healthy_run_is_bit_identical(form: str, name: str) -> None:
    plain = train_plain(full_run(name))
    after_plain = state_of(plain)
    guarded = full_run(name)
    with guarded.guard(policy=LATE) as guard:
        FORMS[form](guarded, guard)
    assert_same_state(after_plain, state_of(guarded))
    assert guard.tally.applied == len(guarded.batches)
    assert guarded.losses[1:] == plain.losses[:-1]  # one step late


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("value", [NAN, INF])
def test_a_bad_step_never_happened_and_is_reported_one_step_later(form: str, name: str, value: float) -> None:
    run = full_run(name)
    guard = run.guard(policy=LATE)
    FORMS[form](run, guard, run.windows(run.batches[:3]))
    before = state_of(run, rng=False)
    FORMS[form](run, guard, [(poison(run.batches[3], value),)])
    assert run.outcomes[-1].incident is None  # it has not been read yet
    unread = {
        k: v for k, v in state_of(run, rng=False).items() if k.startswith(("parameter", "buffer", "optim", "ema"))
    }
    assert_same_state({name: before[name] for name in unread}, unread)
    FORMS[form](run, guard, [(run.batches[4],)])
    incident = run.outcomes[-1].incident
    assert incident is not None
    assert (incident.step, incident.action) == (3, Action.SKIP)
    assert incident.notes == ('read one step late (Policy(sync="late")): the graph is gone, so it was not located',)
    guard.close()
    assert (guard.tally.attempted, guard.tally.applied, guard.tally.incidents) == (5, 4, 1)


@pytest.mark.parametrize("on_skip", ["hold", "advance"])
@pytest.mark.parametrize(
    "scheduler", [lambda o: CosineAnnealingLR(o, 40), lambda o: OneCycleLR(o, 0.1, total_steps=40)]
)
def test_the_schedule_is_held_or_advances(on_skip: Any, scheduler: Any) -> None:
    """The rate of each applied step is that of a run that never met (or quietly passed) the bad batch."""
    clean = make_run(OPTIMIZERS["adamw"], scheduler=scheduler)
    rates = []
    for batch in clean.batches:
        rates.append(clean.optimizer.param_groups[0]["lr"])
        train_plain(clean, [(batch,)])
    run = make_run(OPTIMIZERS["adamw"], scheduler=scheduler)
    guard = run.guard(policy=Policy(sync="late", skips=Skips(scheduler=on_skip)))
    FORMS["attempt"](run, guard, run.windows([*run.batches[:2], poison(run.batches[2]), *run.batches[3:7]]))
    guard.close()
    used = [record.lr[0] for record in guard.history if record.applied]
    expected = rates[:6] if on_skip == "hold" else [*rates[:2], *rates[3:7]]
    assert used == pytest.approx(expected, rel=1e-12)


def test_accumulation_drops_the_window() -> None:
    run = full_run(micro=2)
    guard = run.guard(policy=LATE)
    FORMS["two_line"](run, guard, run.windows(run.batches[:2]))
    before = [p.detach().clone() for p in run.model.parameters()]
    FORMS["two_line"](run, guard, [(run.batches[2], poison(run.batches[3]))])
    assert all(torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True))


def test_a_gradient_beyond_what_is_proven_safe_is_skipped() -> None:
    run = make_run(
        OPTIMIZERS["adamw"], model=lambda: nn.Linear(6, 3), loss=lambda m, b: mse(m, b) * b[0][0, 0], max_grad_norm=None
    )
    guard = run.guard(policy=LATE)
    before = run.model.weight.detach().clone()
    x = run.batches[0][0].clone()
    x[0, 0] = 1e16
    guard.attempt(lambda b: (run.model.weight * b).sum() * 1e16, torch.ones(()))
    assert torch.equal(run.model.weight, before)


def test_too_many_stop_the_run_also_at_close() -> None:
    run = full_run()
    guard = run.guard(policy=Policy(sync="late", max_consecutive_skips=1))
    guard.attempt(run.forward, poison(run.batches[0]))
    guard.attempt(run.forward, poison(run.batches[0]))
    with pytest.raises(nantrap.NonFiniteError, match=r'2 incidents in a row, 1 is allowed, and Policy\(sync="late"\)'):
        guard.close()
    assert not run.model._forward_pre_hooks


def test_the_journal_has_each_step_once(tmp_path: Any) -> None:
    from nantrap.record import read_journal

    run = full_run()
    with run.guard(policy=LATE, run_dir=tmp_path) as guard:
        FORMS["attempt"](run, guard, run.windows([*run.batches[:2], poison(run.batches[2]), *run.batches[3:5]]))
    lines = list(read_journal(tmp_path))
    assert [line.step for line in lines] == [0, 1, 2, 3, 4]
    assert [line.action for line in lines] == ["apply", "apply", "skip", "apply", "apply"]


def test_many_batches_with_some_bad_ones_end_where_the_good_ones_lead() -> None:
    def linear() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    data = batches(12)
    plain = train_plain(make_run(OPTIMIZERS["adamw"], model=linear, data=data))
    run = make_run(OPTIMIZERS["adamw"], model=linear, data=data)
    mixed = [entry for i, batch in enumerate(data) for entry in ([poison(batch)] if i % 4 == 1 else []) + [batch]]
    with run.guard(policy=LATE) as guard:
        FORMS["attempt"](run, guard, run.windows(mixed))
    assert_same_state(state_of(plain, rng=False), state_of(run, rng=False))
