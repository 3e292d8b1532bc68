"""After a skipped step everything equals what it was before it; only the random streams have gone on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import nantrap
from guard.loops import (
    FORMS,
    INF,
    NAN,
    Net,
    Run,
    assert_same_state,
    make_run,
    mse,
    poison,
    same,
    state_of,
    train_plain,
)
from nantrap import Policy, Skips

OPTIMIZERS = {
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2),
    "adamw_fused": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True),
    "sgd_momentum_fused": lambda m: torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9, fused=True),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-3),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=1e-2),
}


def full_run(**parts: Any) -> Run:
    return make_run(
        scheduler=lambda o: torch.optim.lr_scheduler.OneCycleLR(
            o, max_lr=0.1, total_steps=50, cycle_momentum="betas" in o.defaults
        ),
        ema=lambda m: AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True),
        **parts,
    )


def without(state: dict[str, Any], *prefixes: str) -> dict[str, Any]:
    return {name: value for name, value in state.items() if not name.startswith(prefixes)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("when", [0, 3], ids=["first_step", "later"])
def test_everything_is_as_before(form: str, name: str, when: int) -> None:
    run = full_run(optimizer=OPTIMIZERS[name])
    guard = run.guard()
    FORMS[form](run, guard, run.windows(run.batches[:when]))
    before = state_of(run)
    FORMS[form](run, guard, [(poison(run.batches[when]),)])
    outcome = run.outcomes[-1]
    assert (outcome.applied, outcome.action) == (False, "skip")
    assert outcome.incident is not None
    assert_same_state(without(before, "rng"), without(state_of(run), "rng"))
    assert all(parameter.grad is None for parameter in run.model.parameters())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("diagnose", ["full", "off"])
def test_the_random_streams_continue_as_if_only_the_one_forward_had_drawn(form: str, diagnose: Any) -> None:
    run = full_run()
    guard = run.guard(policy=Policy(diagnose=diagnose))
    FORMS[form](run, guard, run.windows(run.batches[:2]))
    here = torch.get_rng_state()
    mse(run.model, run.batches[2])
    after_one_forward = torch.get_rng_state()
    torch.set_rng_state(here)
    FORMS[form](run, guard, [(poison(run.batches[2]),)])
    assert not run.outcomes[-1].applied
    assert same(torch.get_rng_state(), after_one_forward)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_run_after_a_skip_is_the_run_without_that_batch(form: str, name: str) -> None:
    """Not only the state: what follows is bit-identical to a plain run that never met the batch, dropout apart."""

    def without_dropout() -> Net:
        net = Net()
        net.drop = nn.Identity()
        return net

    plain = train_plain(full_run(model=without_dropout, optimizer=OPTIMIZERS[name]))
    guarded = full_run(model=without_dropout, optimizer=OPTIMIZERS[name])
    guard = guarded.guard()
    for index, batch in enumerate(guarded.batches):
        if index in (0, 3, 4):
            FORMS[form](guarded, guard, [(poison(batch),)])
        FORMS[form](guarded, guard, [(batch,)])
    assert_same_state(without(state_of(plain), "rng"), without(state_of(guarded), "rng"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("policy", ["hold", "advance"])
def test_the_schedule_on_a_skip_follows_the_policy(form: str, policy: Any) -> None:
    run = full_run()
    guard = run.guard(policy=Policy(skips=Skips(scheduler=policy)))
    FORMS[form](run, guard, [(poison(run.batches[0]),)])
    assert run.scheduler.last_epoch == (0 if policy == "hold" else 1)
    FORMS[form](run, guard, [(run.batches[0],)])
    assert run.scheduler.last_epoch == (1 if policy == "hold" else 2)


@pytest.mark.parametrize("form", FORMS)
def test_the_scaler_keeps_its_scale_when_the_forward_pass_is_the_cause(form: str) -> None:
    run = full_run(autocast=torch.float16, scaler=lambda: torch.amp.GradScaler("cpu", init_scale=256.0))
    guard = run.guard()
    FORMS[form](run, guard, run.windows(run.batches[:2]))
    before = state_of(run)
    for _ in range(3):
        FORMS[form](run, guard, [(poison(run.batches[2]),)])
        assert run.outcomes[-1].incident is not None
    assert_same_state(without(before, "rng"), without(state_of(run), "rng"))
    FORMS[form](run, guard, [(run.batches[3],)])
    assert run.outcomes[-1].applied


def test_probing_has_a_limit() -> None:
    """More overflows in a row than a search needs are an incident, and the scale is not driven to zero."""
    run = make_run(
        scaler=lambda: torch.amp.GradScaler("cpu", init_scale=2.0**30),
        loss=lambda m, b: mse(m, b) + (m.head.weight * INF).sum().nan_to_num(0.0, 0.0, 0.0),
    )
    guard = run.guard(policy=Policy(skips=Skips(scaler_probes=4), diagnose="off", then="stop"))
    with pytest.raises(nantrap.NonFiniteError):
        FORMS["two_line"](run, guard, [(run.batches[0],)] * 40)
    kinds = [outcome.incident is not None for outcome in run.outcomes]
    assert kinds[:4] == [False] * 4
    assert all(kinds[4:])
    assert run.scaler.get_scale() == 2.0**26


def test_a_nan_gradient_is_not_taken_for_a_search() -> None:
    """`attempt` runs an overflow once more without the scale: what is bad then, the scaler cannot repair."""
    run = make_run(
        scaler=lambda: torch.amp.GradScaler("cpu", init_scale=2.0**10),
        loss=lambda m, b: mse(m, b) + (m.head.weight * INF).sum().nan_to_num(0.0, 0.0, 0.0),
    )
    guard = run.guard(policy=Policy(diagnose="off"))
    FORMS["attempt"](run, guard, [(run.batches[0],)] * 3)
    assert all(outcome.incident is not None for outcome in run.outcomes)
    assert run.scaler.get_scale() == 2.0**10
    assert guard.tally.scaler_probes == 0


@pytest.mark.parametrize("form", FORMS)
def test_fused_sgd_with_momentum_whose_first_step_is_skipped(form: str) -> None:
    """PyTorch leaves the momentum buffer uninitialised when a scaler overflows in the first step."""
    run = make_run(
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9, fused=True),
        scaler=lambda: torch.amp.GradScaler("cpu", init_scale=2.0**100, backoff_factor=2.0**-90),
        model=lambda: nn.Linear(6, 3),
    )
    garbage = [torch.full((3, 6), NAN) for _ in range(64)]  # what uninitialised memory would be made of
    del garbage
    guard = run.guard()
    huge = (run.batches[0][0] * 1e12, run.batches[0][1])
    FORMS[form](run, guard, [(huge,)])
    assert (run.outcomes[0].applied, run.outcomes[0].incident) == (False, None)
    assert not any(state.get("momentum_buffer") is not None for state in run.optimizer.state.values())
    clean = nn.Linear(6, 3)
    clean.load_state_dict(run.model.state_dict())
    reference = torch.optim.SGD(clean.parameters(), lr=1e-2, momentum=0.9)
    for batch in run.batches[1:4]:
        FORMS[form](run, guard, [(batch,)])
        assert run.outcomes[-1].applied
        mse(clean, batch).backward()
        torch.nn.utils.clip_grad_norm_(clean.parameters(), 1.0)
        reference.step()
        reference.zero_grad()
    assert torch.allclose(clean.weight, run.model.weight, atol=1e-6)


class Views(nn.Module):
    """Two forward passes before one backward, as in contrastive learning."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))


@pytest.mark.parametrize("form", FORMS)
def test_several_forward_passes_in_one_step_are_all_undone(form: str) -> None:
    def two_views(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0]) - model(batch[0] + 0.1)).square().mean() + mse(model, batch)

    run = make_run(model=Views, loss=two_views)
    guard = run.guard()
    FORMS[form](run, guard, run.windows(run.batches[:2]))
    before = state_of(run)
    FORMS[form](run, guard, [(poison(run.batches[2]),)])
    assert not run.outcomes[-1].applied
    assert_same_state(without(before, "rng"), without(state_of(run), "rng"))


class LazyMask(nn.Module):
    """Builds its causal mask when it first sees a length, as many transformers do."""

    mask: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.qk = nn.Linear(4, 8)
        self.register_buffer("mask", None)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        if self.mask is None or self.mask.shape[0] != length:
            self.mask = torch.full((length, length), -INF).triu(1)
        query, key = self.qk(x).chunk(2, -1)
        return torch.softmax(query @ key.transpose(1, 2) + self.mask, -1) @ x


class RefilledMask(LazyMask):
    """Fills one buffer with its mask in each forward pass."""

    bias: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", torch.zeros(5, 5))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        self.bias.zero_().masked_fill_(torch.ones(5, 5).triu(1).bool(), -INF)
        self.mask = self.bias[:length, :length].clone()
        return super().forward(x)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("model", [LazyMask, RefilledMask])
def test_a_mask_that_is_built_in_the_forward_pass_is_no_incident(model: type[nn.Module], form: str) -> None:
    data = [torch.randn(2, length, 4) for length in (3, 3, 5, 4)]
    run = make_run(model=model, loss=lambda m, b: m(b).square().mean(), data=data)
    FORMS[form](run, run.guard())
    assert all(outcome.applied for outcome in run.outcomes)


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_that_poisons_only_the_running_statistics(form: str) -> None:
    """The loss and every gradient are finite; BatchNorm's buffers are not. The usual remedies all miss this one."""

    class Side(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6)
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.norm(x)  # statistics only
            return self.head(x.nan_to_num(0.0))

    run = make_run(model=Side)
    guard = run.guard()
    FORMS[form](run, guard, run.windows(run.batches[:2]))
    before = state_of(run)
    FORMS[form](run, guard, [(poison(run.batches[2]),)])
    incident = run.outcomes[-1].incident
    assert incident is not None
    assert "norm.running_mean" in {finding.name for finding in incident.findings if finding.kind == "buffer"}
    assert_same_state(without(before, "rng"), without(state_of(run), "rng"))


def test_buffers_the_user_writes_between_steps_are_the_users() -> None:
    run = make_run()
    guard = run.guard()
    guard.attempt(run.forward, run.batches[0])
    run.model.written.fill_(5.0)
    run.model.table.mul_(2.0)
    guard.attempt(run.forward, poison(run.batches[1]))
    assert run.model.written.tolist() == [5.0] * 3
    assert run.model.table[1] == 2.0


def test_gradients_another_loss_left_take_no_part() -> None:
    plain = make_run()
    after_plain = state_of(train_plain(plain, plain.windows(plain.batches[:3])))
    guarded = make_run()
    guard = guarded.guard()
    for batch in guarded.batches[:3]:
        for parameter in guarded.model.parameters():
            parameter.grad = torch.full_like(parameter, NAN)  # the generator's loss went through this model
        FORMS["two_line"](guarded, guard, [(batch,)])
    assert_same_state(after_plain, state_of(guarded))


def test_a_layer_that_is_unfrozen_later_is_guarded_too() -> None:
    extra = nn.Parameter(torch.ones(3))
    run = make_run(loss=lambda m, b: nn.functional.mse_loss(m(b[0]) * extra, b[1]))
    guard = run.guard()
    guard.attempt(run.forward, run.batches[0])
    run.optimizer.add_param_group({"params": [extra], "lr": 1e-3})
    guard.attempt(run.forward, run.batches[1])
    before = extra.detach().clone()
    assert not same(before, torch.ones(3))
    outcome = guard.attempt(lambda b: run.forward(b) + (extra * NAN).sum() * 0, run.batches[2])
    assert not outcome.applied
    assert same(extra.detach(), before)


def test_one_batch_made_in_inference_mode() -> None:
    run = make_run(model=lambda: nn.Linear(6, 3))
    with torch.inference_mode():
        x = torch.randn(8, 6)
    outcome = run.guard().attempt(lambda b: run.model(b[0].clone()).square().mean(), (x, x))
    assert outcome.applied
