"""A bad value that leaves PyTorch as a plain number, by `.item()`, and comes back into the loss."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap.incident import Incident


def incident_of(form: str, weight: float = math.nan, *, taken_out: bool) -> Incident:
    """The third batch has one row, whose deviation is 0/0; or a weight of the program's own is bad there."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    weights = [1.0, 1.0, weight]

    def loss_fn(x: Tensor, step: int) -> Tensor:
        error = model(x).square().mean()
        if taken_out:
            spread = x.mean(1).std().item() if step == 2 else 1.0
            return error / spread
        weighted = x.abs().mean() * weights[step]
        return error * weighted.reshape(1).mean()  # what reads the bad value next is innocent

    batches = [torch.randn(6, 4), torch.randn(6, 4), torch.randn(1 if taken_out else 6, 4)]
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), quiet=True) as guard:
        for step, batch in enumerate(batches):
            if form == "attempt":
                outcome = guard.attempt(lambda x, step=step: loss_fn(x, step), batch)  # type: ignore[misc]
            else:
                guard.backward(loss_fn(batch, step))
                outcome = guard.step()
    assert outcome.incident is not None
    return outcome.incident


@pytest.mark.filterwarnings("ignore:std\\(\\):UserWarning")
@pytest.mark.parametrize("form", ["attempt", "two lines"])
def test_the_operation_before_item_is_the_origin(form: str) -> None:
    incident = incident_of(form, taken_out=True)
    assert (incident.phase, incident.op) == ("forward", "aten.std")
    assert incident.source is not None
    assert ".std().item()" in incident.source.text
    assert incident.cause is not None
    assert (incident.cause.slug, incident.cause.proven) == ("std_of_one_element", True)


@pytest.mark.parametrize("form", ["attempt", "two lines"])
@pytest.mark.parametrize(("weight", "word"), [(math.nan, "NaN"), (math.inf, "Inf"), (-math.inf, "-Inf")])
def test_a_number_that_came_from_elsewhere_is_named_and_no_mask(form: str, weight: float, word: str) -> None:
    incident = incident_of(form, weight, taken_out=False)
    assert incident.op == "aten.mul"
    assert incident.cause is not None
    assert (incident.cause.slug, incident.cause.proven) == ("unknown", False)
    assert incident.cause.summary == f"aten.mul was given a Python number that is {word}"
