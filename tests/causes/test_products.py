"""Zero times infinity in a product of matrices: proven only where nothing else in the same entry gives NaN."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap.incident import Incident

ALONE = "one matrix holds Inf where the other holds 0; without those terms no entry is NaN"
MIXED = "one matrix holds Inf where the other holds 0"


def incident_of(weights: list[float], table: list[float]) -> Incident:
    """The loss is a product of constant weights with the model's outputs plus a table: row 0 of it holds the Inf."""
    model = nn.Linear(2, 4)

    def loss_fn(x: Tensor) -> Tensor:
        scores = model(x) + torch.tensor([table, [0.0] * 4])
        loss: Tensor = (scores @ torch.tensor(weights)[:, None]).mean()
        return loss

    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), quiet=True) as guard:
        incident = guard.attempt(loss_fn, torch.ones(2, 2)).incident
    assert incident is not None
    return incident


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_weight_of_zero_on_an_inf_is_proven(sign: float) -> None:
    incident = incident_of([0.0, 1.0, 1.0, 1.0], [sign * math.inf, 0.0, 0.0, 0.0])
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("zero_times_inf", True)
    assert ALONE in [evidence.text for evidence in incident.causes[0].evidence]


def test_other_infs_of_one_sign_beside_it_do_not_matter() -> None:
    incident = incident_of([0.0, 1.0, -1.0, 1.0], [math.inf, math.inf, -math.inf, 0.0])
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("zero_times_inf", True)


def test_inf_minus_inf_in_the_same_entry_is_a_guess() -> None:
    incident = incident_of([0.0, 1.0, 1.0, 1.0], [math.inf, math.inf, -math.inf, 0.0])
    assert not any(cause.proven for cause in incident.causes)
    assert MIXED in [evidence.text for evidence in incident.causes[0].evidence]
