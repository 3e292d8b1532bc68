"""Failures whose cause lies off the usual path: in the optimizer's squares, in an earlier micro-batch, in a second
derivative. Each in three forms, each with a near miss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nantrap import Guard, Incident
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings
from nantrap.record import open_run

FORMS = ("attempt", "two_line", "run")
Loss = Callable[[Any], Tensor]


def incidents_of(
    form: str, model: nn.Module, loss: Loss, windows: Sequence[Sequence[Any]], run_dir: Path, *, lr: float = 1e-3
) -> list[Incident]:
    """Train in one of three forms; what is on disk afterwards."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    if form == "run":
        with attached(RunSettings(run_dir=str(run_dir), quiet=True)):
            optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
            for window in windows:
                optimizer.zero_grad()
                for batch in window:
                    (loss(batch) / len(window)).backward()
                optimizer.step()
    else:
        with Guard(model, optimizer, max_grad_norm=None, run_dir=run_dir, quiet=True) as guard:
            for window in windows:
                if form == "attempt":
                    guard.attempt(loss, *window)
                    continue
                for batch in window:
                    guard.backward(loss(batch) / len(window))
                guard.step()
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    return [item.incident for item in open_run(run_dir).incidents if item.incident is not None]


def slug(incident: Incident) -> str | None:
    return incident.cause.slug if incident.cause is not None and incident.cause.proven else None


@pytest.mark.parametrize("form", FORMS)
def test_a_second_moment_that_overflows_is_said_in_that_step(form: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    batches = [(torch.randn(6, 4), 1e25 if step == 2 else 1.0) for step in range(5)]
    (incident,) = incidents_of(form, model, lambda b: model(b[0]).sum() * b[1], [(b,) for b in batches], tmp_path)
    assert (incident.step, incident.phase) == (2, "optimizer")
    assert slug(incident) == "grad_norm_overflow"
    assert incident.restored is True
    assert incident.cause is not None
    assert "overflows when the optimizer squares it" in incident.cause.summary
    assert any("the weight would never move again" in evidence.text for evidence in incident.cause.evidence)


@pytest.mark.parametrize("form", FORMS)
def test_large_gradients_whose_squares_fit_are_no_incident(form: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    batches = [(torch.randn(6, 4), 1e17 if step == 2 else 1.0) for step in range(5)]
    assert incidents_of(form, model, lambda b: model(b[0]).sum() * b[1], [(b,) for b in batches], tmp_path) == []


def windows_with(value: float) -> list[list[Tensor]]:
    """Four steps of three micro-batches; the middle one of the third step holds this value."""
    generator = torch.Generator().manual_seed(0)
    windows = [[torch.randn(6, 4, generator=generator) for _ in range(3)] for _ in range(4)]
    windows[2][1][4, 0] = value
    return windows


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))


def root_of_zero(model: nn.Module) -> Loss:
    return lambda x: (model(x).square().sum(-1) * (x[:, 0] != 7)).sqrt().mean()


def quotient_of_zero(model: nn.Module) -> Loss:
    return lambda x: (model(x).square().sum(-1) / (x[:, 0] != 7).float()).mean()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("make", "cause"), [(root_of_zero, "singular_gradient_at_zero"), (quotient_of_zero, "division_by_zero")]
)
def test_a_micro_batch_that_is_not_the_last(
    form: str, make: Callable[[nn.Module], Loss], cause: str, tmp_path: Path
) -> None:
    model = network()
    (incident,) = incidents_of(form, model, make(model), windows_with(7.0), tmp_path)
    assert incident.step == 2
    assert slug(incident) == cause
    assert any("micro-batch 2" in note for note in incident.notes)
    assert incident.inputs[0].stats is not None
    assert incident.inputs[0].stats.max == 7.0  # the batch of that micro-batch, not of the last one


@pytest.mark.parametrize("form", FORMS)
def test_micro_batches_without_a_fault(form: str, tmp_path: Path) -> None:
    model = network()
    assert incidents_of(form, model, root_of_zero(model), windows_with(6.0), tmp_path) == []


def penalty(model: nn.Module) -> Loss:
    """The slope of a critic at its inputs is held at 1; the square root of a slope of exactly 0 has none itself."""

    def loss(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_(True)
        output = model(x)
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        return output.mean() + (slope.square().sum(1).sqrt() - 1).square().mean()

    return loss


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("flat", [True, False])
def test_a_gradient_penalty(form: str, flat: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    with torch.no_grad():
        model[0].bias.fill_(-100.0 if flat else 100.0)  # type: ignore[operator, union-attr]
    found = incidents_of(form, model, penalty(model), [(torch.randn(6, 4),)], tmp_path)
    assert [(incident.phase, slug(incident)) for incident in found] == (
        [("backward", "singular_gradient_at_zero")] if flat else []
    )
    assert all(incident.source is not None and "sqrt()" in incident.source.text for incident in found)
