"""`Policy(sync="late")`: no host read in the step, the skip happens on the device, the host learns a step later."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import nantrap
from guard.loops import FORMS, INF, NAN, Run, assert_same_state, batches, make_run, poison, state_of, train_plain
from journals import steps_in
from nantrap import Action, Policy, Rollback, Skips

OPTIMIZERS = {
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=1e-2, fused=True),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=1e-2, fused=True),
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=1e-2, fused=True),
}
LATE = Policy(sync="late")


FIRST = 8
"""The first steps of a run are read at once."""


def full_run(name: str = "adamw", **parts: Any) -> Run:
    return make_run(
        OPTIMIZERS[name],
        data=batches(2 * FIRST),
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
    for outcome, loss in zip(guarded.outcomes, guarded.losses, strict=True):
        assert loss == plain.losses[outcome.loss_step]
    assert [outcome.loss_step - outcome.step for outcome in guarded.outcomes] == [0] * 8 + [-1] * 8


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("value", [NAN, INF])
def test_a_bad_step_never_happened_and_is_reported_one_step_later(form: str, name: str, value: float) -> None:
    run, at_once = full_run(name), full_run(name)
    guard = run.guard(policy=LATE)
    FORMS[form](run, guard, run.windows(run.batches[:10]))
    before = state_of(run, rng=False)
    FORMS[form](run, guard, [(poison(run.batches[3], value),)])
    assert run.outcomes[-1].incident is None  # it has not been read yet
    unread = {
        k: v for k, v in state_of(run, rng=False).items() if k.startswith(("parameter", "buffer", "optim", "ema"))
    }
    assert_same_state({name: before[name] for name in unread}, unread)
    FORMS[form](run, guard, [(run.batches[4],)])
    outcome = run.outcomes[-1]
    assert outcome.incident is not None
    assert (outcome.step, outcome.incident.step, outcome.incident.action) == (11, 10, Action.SKIP)
    guard.close()
    assert (guard.tally.attempted, guard.tally.applied, guard.tally.incidents) == (12, 11, 1)
    known = at_once.guard(policy=Policy(sync="step"))
    FORMS[form](at_once, known, at_once.windows([*at_once.batches[:10], poison(run.batches[3], value)]))
    known.close()
    assert told(outcome.incident) == told(known.last_incident)


def told(incident: Any) -> Any:
    """Everything that an incident says of a failure."""
    causes = [(cause.slug, cause.proven, cause.summary, cause.fix) for cause in incident.causes]
    findings = sorted((f.kind, f.name, f.phase) for f in incident.findings if f.kind not in ("gradient", "grad_norm"))
    place = incident.phase, incident.module, incident.op, incident.node, incident.source, incident.samples
    return place, causes, findings, len(incident.trials), incident.action, repr(incident.loss)


@pytest.mark.parametrize("on_skip", ["hold", "advance"])
@pytest.mark.parametrize(
    "scheduler", [lambda o: CosineAnnealingLR(o, 40), lambda o: OneCycleLR(o, 0.1, total_steps=40)]
)
def test_the_schedule_is_held_or_advances(on_skip: Any, scheduler: Any) -> None:
    """The rate of each applied step is that of a run that never met (or quietly passed) the bad batch."""
    clean = make_run(OPTIMIZERS["adamw"], scheduler=scheduler, data=batches(2 * FIRST))
    rates = []
    for batch in clean.batches:
        rates.append(clean.optimizer.param_groups[0]["lr"])
        train_plain(clean, [(batch,)])
    run = make_run(OPTIMIZERS["adamw"], scheduler=scheduler, data=batches(2 * FIRST))
    guard = run.guard(policy=Policy(sync="late", skips=Skips(scheduler=on_skip)))
    FORMS["attempt"](run, guard, run.windows([*run.batches[:10], poison(run.batches[10]), *run.batches[11:15]]))
    guard.close()
    used = [record.lr[0] for record in guard.history if record.applied]
    expected = rates[:14] if on_skip == "hold" else [*rates[:10], *rates[11:15]]
    assert used == pytest.approx(expected, rel=1e-12)


def test_accumulation_drops_the_window() -> None:
    run = full_run(micro=2)
    guard = run.guard(policy=LATE)
    FORMS["two_line"](run, guard, run.windows([*run.batches, *run.batches]))
    before = [p.detach().clone() for p in run.model.parameters()]
    FORMS["two_line"](run, guard, [(run.batches[2], poison(run.batches[3]))])
    assert all(torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True))


def test_a_gradient_beyond_what_is_proven_safe_is_skipped() -> None:
    run = make_run(OPTIMIZERS["adamw"], model=lambda: nn.Linear(6, 3), max_grad_norm=None)
    guard = run.guard(policy=LATE)
    FORMS["attempt"](run, guard, run.windows([*run.batches, *run.batches]))
    before = run.model.weight.detach().clone()
    guard.attempt(lambda b: (run.model.weight * b).sum() * 1e16, torch.ones(()))
    guard.close()
    assert torch.equal(run.model.weight, before)
    assert guard.last_incident is not None
    [norm] = guard.last_incident.findings
    assert norm.note == "the gradient norm 4.243e+16 is above 1e+15, up to which the update is proven finite"


def test_too_many_stop_the_run_also_at_close() -> None:
    run = full_run()
    guard = run.guard(policy=Policy(sync="late", max_consecutive_skips=0, then="stop"))
    FORMS["attempt"](run, guard, run.windows(run.batches[:10]))
    guard.attempt(run.forward, poison(run.batches[0]))
    with pytest.raises(nantrap.NonFiniteError, match="no skip is allowed"):
        guard.close()
    assert not run.model._forward_pre_hooks


def test_a_run_that_must_go_back_leaves_the_step_between_out() -> None:
    run = full_run()
    policy = Policy(sync="late", max_consecutive_skips=0, rollback=Rollback(anchor_every=4), lr_backoff=1.0)
    guard = run.guard(policy=policy)
    FORMS["attempt"](run, guard, run.windows(run.batches[:12]))
    guard.attempt(run.forward, poison(run.batches[0]))
    outcome = guard.attempt(run.forward, run.batches[12])
    assert (outcome.applied, outcome.action) == (False, Action.SKIP)
    assert outcome.incident is not None
    assert (outcome.incident.step, outcome.incident.action) == (12, Action.ROLLBACK)
    assert guard.attempt(run.forward, run.batches[13]).applied
    guard.close()


def test_an_overflow_of_the_scaled_gradients_is_left_to_the_scaler() -> None:
    """The scale grows until gradients overflow, again and again: the same scales and weights as in the plain loop."""

    def made() -> Run:
        return make_run(
            OPTIMIZERS["adamw"],
            model=lambda: nn.Linear(6, 3),
            data=batches(40),
            scaler=lambda: torch.amp.GradScaler("cpu", init_scale=2.0**118, growth_interval=3),
        )

    plain, run = train_plain(made()), made()
    with run.guard(policy=LATE) as guard:
        FORMS["attempt"](run, guard)
    assert_same_state(state_of(plain), state_of(run))
    assert guard.tally.incidents == 0
    assert guard.tally.applied < guard.tally.attempted


def test_what_must_be_known_before_the_update_is_read_at_once(tmp_path: Any) -> None:
    import json

    run = make_run(lambda m: torch.optim.AdamW(m.parameters(), fused=True))
    cases = {
        "a read": Policy(sync="auto"),
        "Policy(on_incident=": Policy(sync="late", on_incident="raise"),
        "Spikes(action=": Policy(sync="late", spikes="skip"),
        "BatchChecks": Policy(sync="late", batches=nantrap.BatchChecks(unusual="warn")),
    }
    for number, (words, policy) in enumerate(cases.items()):
        with run.guard(policy=policy, run_dir=tmp_path / str(number)):
            told = json.loads((tmp_path / str(number) / "run.json").read_text())["read"]
        assert told.startswith("at once: ")
        assert words in told
    slow = make_run(lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9))
    with slow.guard(policy=LATE, run_dir=tmp_path / "sgd"):
        told = json.loads((tmp_path / "sgd" / "run.json").read_text())["read"]
    assert told.startswith("at once: SGD cannot skip a step on the device")


def test_the_journal_has_each_step_once(tmp_path: Any) -> None:
    run = full_run()
    with run.guard(policy=LATE, run_dir=tmp_path) as guard:
        FORMS["attempt"](run, guard, run.windows([*run.batches[:10], poison(run.batches[2]), *run.batches[10:14]]))
    lines = steps_in(tmp_path)
    assert [line["step"] for line in lines] == list(range(15))
    assert [line["action"] for line in lines] == [*["apply"] * 10, "skip", *["apply"] * 4]


def test_many_batches_with_some_bad_ones_end_where_the_good_ones_lead() -> None:
    def linear() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    data = batches(24)
    plain = train_plain(make_run(OPTIMIZERS["adamw"], model=linear, data=data))
    run = make_run(OPTIMIZERS["adamw"], model=linear, data=data)
    mixed = [entry for i, batch in enumerate(data) for entry in ([poison(batch)] if i % 4 == 1 else []) + [batch]]
    with run.guard(policy=LATE) as guard:
        FORMS["attempt"](run, guard, run.windows(mixed))
    assert_same_state(state_of(plain, rng=False), state_of(run, rng=False))
