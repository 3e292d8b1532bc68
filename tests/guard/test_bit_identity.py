"""A healthy guarded run is the plain run, bit for bit: losses, weights, optimizer state, buffers, random streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import nantrap
from guard.loops import (
    FORMS,
    Net,
    Run,
    assert_same_state,
    batches,
    make_run,
    mse,
    same_losses,
    state_of,
    train_attempt,
    train_plain,
)
from nantrap import Accumulation, Policy, Rollback

OPTIMIZERS = {
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2),
    "adamw_fused": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True),
    "adam_amsgrad": lambda m: torch.optim.Adam(m.parameters(), lr=1e-2, amsgrad=True, weight_decay=0.1),
    "sgd_momentum": lambda m: torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9, weight_decay=1e-3),
    "sgd_momentum_fused": lambda m: torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9, fused=True),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-3, momentum=0.5, centered=True),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=1e-2),
    "nadam": lambda m: torch.optim.NAdam(m.parameters(), lr=1e-3),
}


def compare(form: str, **parts: Any) -> tuple[Run, Run]:
    plain = train_plain(make_run(**parts))
    after_plain = state_of(plain)
    guarded = make_run(**parts)
    with guarded.guard() as guard:
        FORMS[form](guarded, guard)
    assert same_losses(plain.losses, guarded.losses)
    assert_same_state(after_plain, state_of(guarded))
    assert all(outcome.incident is None for outcome in guarded.outcomes)
    assert [outcome.step for outcome in guarded.outcomes] == list(range(len(guarded.outcomes)))
    return plain, guarded


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(form: str, name: str) -> None:
    compare(form, optimizer=OPTIMIZERS[name])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("undo", ["always", "never"])
def test_every_way_to_undo(form: str, undo: Any) -> None:
    plain = train_plain(make_run())
    after_plain = state_of(plain)
    guarded = make_run()
    FORMS[form](guarded, guarded.guard(policy=Policy(rollback=Rollback(undo=undo))))
    assert_same_state(after_plain, state_of(guarded))


@pytest.mark.parametrize("form", FORMS)
def test_without_clipping_and_with_a_norm_far_above_the_limit(form: str) -> None:
    compare(form, max_grad_norm=None)
    compare(form, max_grad_norm=1e-3)
    compare(form, max_grad_norm=1e9)


class Matrices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16, bias=False)
        self.second = nn.Linear(16, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
@pytest.mark.parametrize("form", FORMS)
def test_muon(form: str) -> None:
    compare(form, model=Matrices, optimizer=lambda m: torch.optim.Muon(m.parameters(), lr=1e-2))


def test_lbfgs_by_attempt() -> None:
    def lbfgs(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")

    plain = make_run(lbfgs, model=Matrices)
    for batch in plain.batches:

        def closure() -> Tensor:
            plain.optimizer.zero_grad()
            loss = mse(plain.model, batch)
            loss.backward()
            return loss

        update: Any = plain.optimizer.step  # declared for closures that return a float
        plain.losses.append(float(update(closure).detach()))
    plain.optimizer.zero_grad()
    guarded = make_run(lbfgs, model=Matrices)
    train_attempt(guarded, guarded.guard())
    assert same_losses(plain.losses, guarded.losses)
    assert_same_state(state_of(plain), state_of(guarded))


class Awkward(nn.Module):
    """A frozen layer, a layer that takes no part, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(6, 16)
        self.decode = nn.Linear(16, 6)
        self.decode.weight = nn.Parameter(torch.empty(0))
        self.decode = nn.Linear(6, 16)
        self.decode.weight = self.encode.weight
        self.frozen = nn.Linear(16, 16).requires_grad_(requires_grad=False)
        self.unused = nn.Linear(4, 4)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.frozen(self.encode(x) + self.decode(x))))


@pytest.mark.parametrize("form", FORMS)
def test_frozen_unused_and_tied_parameters_in_several_groups(form: str) -> None:
    def groups(model: Awkward) -> torch.optim.Optimizer:
        chosen: list[dict[str, Any]] = [
            {"params": [*model.encode.parameters(), *model.unused.parameters()], "lr": 1e-2},
            {"params": [model.decode.bias, *model.head.parameters()], "lr": 1e-3, "weight_decay": 0.0},
            {"params": list(model.frozen.parameters()), "betas": (0.5, 0.9)},
        ]
        return torch.optim.AdamW(chosen, lr=1e-4)

    compare(form, model=Awkward, optimizer=groups)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 6, sparse=True)

    def forward(self, index: Tensor) -> Tensor:
        return self.table(index).sum(1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "optimizer",
    [lambda m: torch.optim.SparseAdam(m.parameters(), lr=1e-2), lambda m: torch.optim.SGD(m.parameters(), lr=1e-1)],
    ids=["sparse_adam", "sgd"],
)
def test_sparse_gradients(form: str, optimizer: Any) -> None:
    data = [(torch.randint(50, (8, 4)), torch.randn(8, 6)) for _ in range(6)]
    # clip_grad_norm_ knows no sparse gradients, so the plain loop cannot clip
    compare(form, model=Words, optimizer=optimizer, data=data, max_grad_norm=None)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "scheduler",
    [
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=20),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=10),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [
                torch.optim.lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=3),
                torch.optim.lr_scheduler.ExponentialLR(o, gamma=0.9),
            ],
            milestones=[3],
        ),
    ],
    ids=["one_cycle", "cosine", "sequential"],
)
def test_schedulers(form: str, scheduler: Any) -> None:
    compare(form, scheduler=scheduler)


@pytest.mark.parametrize("form", FORMS)
def test_averaged_weights(form: str) -> None:
    compare(form, ema=lambda m: AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["adamw", "adamw_fused", "sgd_momentum"])
def test_grad_scaler_that_has_to_search_its_scale(form: str, name: str) -> None:
    _, guarded = compare(
        form,
        optimizer=OPTIMIZERS[name],
        autocast=torch.float16,
        scaler=lambda: torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3),
        data=batches(14),
    )
    skipped = [outcome for outcome in guarded.outcomes if not outcome.applied]
    assert skipped, "the scale was meant to be too large at first"
    assert guarded.scaler.get_scale() < 2.0**20


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("micro", [2, 4])
def test_gradient_accumulation(form: str, micro: int) -> None:
    # two-line: the loss is divided by the user; attempt: the factor 1/micro is multiplied, equal for powers of two
    compare(form, micro=micro)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "policy", [Policy(accumulation=Accumulation(bad="window")), Policy(on_incident="raise"), Policy.observe()]
)
def test_gradient_accumulation_under_other_policies(form: str, policy: Policy) -> None:
    plain = train_plain(make_run(micro=4))
    after_plain = state_of(plain)
    guarded = make_run(micro=4)
    FORMS[form](guarded, guarded.guard(policy=policy))
    assert_same_state(after_plain, state_of(guarded))


@pytest.mark.parametrize("form", FORMS)
def test_gradient_accumulation_with_a_grad_scaler(form: str) -> None:
    compare(
        form,
        micro=2,
        autocast=torch.float16,
        scaler=lambda: torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3),
        data=batches(20),
    )


@pytest.mark.parametrize("form", FORMS)
def test_sparse_gradients_accumulate(form: str) -> None:
    data = [(torch.randint(50, (8, 4)), torch.randn(8, 6)) for _ in range(8)]
    compare(
        form,
        model=Words,
        optimizer=lambda m: torch.optim.SparseAdam(m.parameters(), lr=1e-2),
        data=data,
        max_grad_norm=None,
        micro=2,
    )


def checkpointed_whole(reentrant: bool) -> Any:
    """A loss that checkpoints the whole model: the backward pass calls it again."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        output: Any = checkpoint(model, batch[0].requires_grad_(), use_reentrant=reentrant)
        return nn.functional.mse_loss(output, batch[1])

    return loss


def checkpointed_part(reentrant: bool) -> Any:
    """A loss that calls the model's parts, one of them checkpointed."""

    def loss(model: nn.Sequential, batch: tuple[Tensor, Tensor]) -> Tensor:
        hidden: Any = checkpoint(model[1], model[0](batch[0]), use_reentrant=reentrant)
        return nn.functional.mse_loss(model[2](hidden), batch[1])

    return loss


def three_parts() -> nn.Module:
    middle = nn.Sequential(nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh())
    return nn.Sequential(nn.Linear(8, 16), middle, nn.Linear(16, 4))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("loss", [checkpointed_whole, checkpointed_part])
def test_activation_checkpointing(form: str, reentrant: bool, micro: int, loss: Any) -> None:
    """The model is called again inside the backward pass: that is no further micro-batch."""
    data = [(torch.randn(8, 8), torch.randn(8, 4)) for _ in range(8)]
    compare(form, model=three_parts, loss=loss(reentrant), data=data, micro=micro)


@pytest.mark.parametrize("form", FORMS)
def test_named_terms_add_up_as_the_user_would(form: str) -> None:
    def terms(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        output = model(batch[0])
        return {"fit": nn.functional.mse_loss(output, batch[1]), "size": 0.01 * output.square().mean()}

    _, guarded = compare(form, loss=terms)
    assert set(guarded.outcomes[0].terms) == {"fit", "size"}


@pytest.mark.parametrize("form", FORMS)
def test_a_compiled_model(form: str) -> None:
    def compiled(train: Callable[[Run], object]) -> tuple[Run, dict[str, Any]]:
        run = make_run()
        model, run.model = run.model, cast("Net", torch.compile(run.model, backend="eager"))
        train(run)
        run.model = model
        return run, state_of(run)

    def train_guarded(run: Run) -> None:
        with run.guard() as guard:
            FORMS[form](run, guard)

    # both are compiled: torch 2.9 rounds a buffer differently when it is
    plain, after_plain = compiled(train_plain)
    guarded, after_guarded = compiled(train_guarded)
    assert same_losses(plain.losses, guarded.losses)
    assert_same_state(after_plain, after_guarded)


def test_observing_is_bit_identical_even_through_nan() -> None:
    def through_nan() -> Run:
        run = make_run(
            data=batches(10),
            scheduler=lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=10),
            ema=lambda m: AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
        )
        run.batches[4] = (run.batches[4][0] * float("nan"), run.batches[4][1])
        return run

    plain = train_plain(through_nan())
    for form in FORMS.values():
        guarded = through_nan()
        form(guarded, guarded.guard(policy=Policy.observe()))
        # the sign and payload of a NaN are not kept; its place is
        left, right = state_of(plain), state_of(guarded)
        assert left.keys() == right.keys()
        for name, value in left.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                assert torch.equal(value.isnan(), right[name].isnan()), name
                assert torch.equal(value.nan_to_num(), right[name].nan_to_num()), name
        assert guarded.outcomes[4].incident is not None
        assert all(outcome.applied for outcome in guarded.outcomes)


def test_outcome_says_what_happened() -> None:
    run = make_run()
    guard = run.guard()
    outcome = guard.attempt(run.forward, run.batches[0])
    assert isinstance(outcome, nantrap.Outcome)
    assert (outcome.applied, outcome.action, outcome.step, outcome.incident) == (True, "apply", 0, None)
    assert isinstance(outcome.loss, float)
    assert isinstance(outcome.grad_norm, float)
