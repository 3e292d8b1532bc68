"""A learning rate that is too high, told apart from training in the wrong direction, which a lower rate only delays."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap.incident import Incident

DELAYS = "with a far lower learning rate the loss still ends higher than without any update"


def incident_of(kind: str) -> Incident:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    momentum = 30.0 if kind == "momentum" else 0.0
    rate = 0.05 if momentum else 2.0
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, maximize=kind == "maximize")

    def loss_fn(x: Tensor) -> Tensor:
        loss: Tensor = (model(x) - 1).square().mean()
        return -loss if kind == "sign" else loss

    with nantrap.Guard(model, optimizer, quiet=True) as guard:
        for _ in range(80):
            incident = guard.attempt(loss_fn, torch.randn(8, 4)).incident
            if incident is not None:
                return incident
    raise AssertionError("no incident")


@pytest.mark.parametrize("kind", ["sign", "maximize", "momentum"])
def test_the_wrong_direction_does_not_prove_the_rate(kind: str) -> None:
    incident = incident_of(kind)
    assert not any(cause.proven for cause in incident.causes)
    assert DELAYS in [evidence.text for evidence in incident.causes[0].evidence]
    fix = incident.causes[0].fix
    assert fix is not None
    assert fix.words.startswith("check the direction first")


def test_a_rate_that_is_too_high_is_still_proven() -> None:
    incident = incident_of("rate")
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("lr_too_high", True)
    assert DELAYS not in [evidence.text for evidence in incident.causes[0].evidence]


def incident_of_groups(*, rates: tuple[float, float], jump: float | None = None, sign: float = 1.0) -> Incident:
    """Two parameter groups: the head's learning rate is the second one, and rises to `jump` before step 4."""
    torch.manual_seed(0)
    body, head = nn.Linear(4, 4), nn.Linear(4, 1)
    model = nn.Sequential(body, nn.Tanh(), head)
    optimizer = torch.optim.SGD(
        [{"params": body.parameters(), "lr": rates[0]}, {"params": head.parameters(), "lr": rates[1]}]
    )

    def loss_fn(x: Tensor) -> Tensor:
        loss: Tensor = sign * (model(x) - 1).square().mean()
        return loss

    with nantrap.Guard(model, optimizer, quiet=True) as guard:
        for step in range(40):
            if jump is not None and step == 4:
                optimizer.param_groups[1]["lr"] = jump
            incident = guard.attempt(loss_fn, torch.randn(8, 4)).incident
            if incident is not None:
                return incident
    raise AssertionError("no incident")


def test_the_highest_rate_of_all_groups_is_named() -> None:
    cause = incident_of_groups(rates=(0.0, 30.0)).causes[0]
    assert (cause.slug, cause.proven) == ("lr_too_high", True)
    assert cause.summary.startswith("a learning rate of 30, the highest of 2 parameter groups, is beyond")
    assert cause.fix is not None
    assert "(the same steps stay finite at 0.3)" in cause.fix.words


def test_one_rate_for_all_groups_is_named_alone() -> None:
    cause = incident_of_groups(rates=(30.0, 30.0)).causes[0]
    assert cause.summary.startswith("a learning rate of 30 is beyond")


def test_a_rate_that_no_tenth_can_save_is_tried_with_a_usual_one() -> None:
    cause = incident_of_groups(rates=(0.0, 1e12)).causes[0]
    assert (cause.slug, cause.proven) == ("lr_too_high", True)
    assert "the same batches with a learning rate of at most 0.001 stay finite" in str(cause.evidence)


def test_such_a_rate_in_the_wrong_direction_is_a_guess() -> None:
    incident = incident_of_groups(rates=(0.0, 1e12), sign=-1.0)
    assert not any(cause.proven for cause in incident.causes)
    assert DELAYS in [evidence.text for evidence in incident.causes[0].evidence]


def test_a_jump_of_the_second_group_is_found() -> None:
    cause = incident_of_groups(rates=(0.01, 0.01), jump=200.0).causes[0]
    assert (cause.slug, cause.proven) == ("resume_lr_jump", True)
    assert cause.summary == "the learning rate jumped from 0.01 to 200 at step 4"


def test_accumulated_steps_that_exploded_are_no_proof_of_an_overflowing_norm() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    guard = nantrap.Guard(model, optimizer, quiet=True)
    calls = iter(range(99))

    def loss_fn(x: Tensor) -> Tensor:
        next(calls)  # no replay may call it again
        loss: Tensor = (model(x) - 1).square().mean()
        return loss

    for _ in range(40):
        for _ in range(2):
            guard.backward(loss_fn(300 * torch.randn(8, 4)))
        incident = guard.step().incident
        if incident is not None:
            break
    assert incident is not None
    assert any(finding.kind == "grad_norm" for finding in incident.findings)
    assert [cause.slug for cause in incident.causes][:2] == ["lr_too_high", "grad_norm_overflow"]
    assert not any(cause.proven for cause in incident.causes)


@pytest.mark.parametrize(("rate", "spread", "slug"), [(10.0, 1.0, "lr_too_high"), (1e-3, 1e5, "fp16_forward_overflow")])
def test_half_precision_is_where_weights_that_were_thrown_away_show_first(
    rate: float, spread: float, slug: str
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))

    def loss_fn(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))

    with nantrap.Guard(model, torch.optim.AdamW(model.parameters(), lr=rate), quiet=True) as guard:
        batches = [torch.randn(16, 32) * (spread if i == 2 else 1) for i in range(4)]
        incident = next(i for batch in batches if (i := guard.attempt(loss_fn, batch).incident))
    assert incident.causes[0].slug == slug
    assert incident.causes[0].proven


@pytest.mark.parametrize(("rate", "factor", "slug"), [(0.03, 1.0, "lr_too_high"), (1e-6, 1e25, "grad_norm_overflow")])
def test_a_norm_that_overflows_after_weights_were_thrown_away_is_no_scale_of_the_loss(
    rate: float, factor: float, slug: str
) -> None:
    torch.manual_seed(0)
    width = 24
    state, given, out = nn.Linear(width, width, bias=False), nn.Linear(3, width), nn.Linear(width, 1)
    nn.init.orthogonal_(state.weight)
    model = nn.ModuleList([state, given, out])

    def loss_fn(x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), width)
        for t in range(x.shape[1]):
            h = state(h) + given(x[:, t])
        loss: Tensor = factor * (out(h)[:, 0] - x.sum((1, 2))).pow(2).mean()
        return loss

    policy = nantrap.Policy(diagnosis=nantrap.Diagnosis(seconds=600, clock=lambda: 0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with nantrap.Guard(model, optimizer, max_grad_norm=1e6, policy=policy, quiet=True) as guard:
        found = (guard.attempt(loss_fn, torch.randn(16, 40, 3)).incident for _ in range(3))
        incident = next(each for each in found if each is not None)
    assert (incident.causes[0].slug, incident.causes[0].proven) == (slug, True)
