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
    assert fix.text.startswith("check the direction first")


def test_a_rate_that_is_too_high_is_still_proven() -> None:
    incident = incident_of("rate")
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("lr_too_high", True)
    assert DELAYS not in [evidence.text for evidence in incident.causes[0].evidence]
