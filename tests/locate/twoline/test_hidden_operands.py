"""NaN that comes from a tensor which no gradient needs, and which autograd did not save: the operation is innocent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap.incident import Incident

FIRST = torch.tensor([1])
PASS_IT_ON: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "lerp": lambda out, wanted: torch.lerp(out, wanted, 0.5),
    "scatter": lambda out, wanted: out.scatter(1, torch.zeros(6, 1, dtype=torch.long), wanted[:, :1]),
    "index_copy": lambda out, wanted: out.index_copy(1, FIRST, wanted[:, :1]),
    "index_add": lambda out, wanted: out.index_add(1, FIRST, wanted[:, :1]),
    "slice_scatter": lambda out, wanted: torch.slice_scatter(out, wanted[:, :1], 1, 1, 2),
    "addcmul": lambda out, wanted: torch.addcmul(out, wanted, wanted),
    "addmm": lambda out, wanted: torch.addmm(wanted, out, torch.ones(4, 4)),
    "cat": lambda out, wanted: torch.cat([out, wanted]),
}


class Naming:
    """A loss that cannot be computed again: it writes an attribute."""

    def __init__(self, combined: Callable[[Tensor, Any], Tensor]) -> None:
        self.last = ""
        self.combined = combined

    def __call__(self, out: Tensor, wanted: Tensor | None) -> Tensor:
        self.last = "now"
        return self.combined(out, wanted).square().mean()


def incident_of(combined: Callable[[Tensor, Any], Tensor], wanted: Tensor | None) -> Incident:
    torch.manual_seed(0)
    model, criterion = nn.Linear(4, 4), Naming(combined)
    guard: Any = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-3), quiet=True)
    guard.backward(criterion(model(torch.randn(6, 4)), wanted))
    found: Incident = guard.step().incident
    return found


@pytest.mark.parametrize("name", PASS_IT_ON)
def test_the_tensor_is_to_blame_that_the_operation_passes_on(name: str) -> None:
    bad = torch.zeros(6, 4)
    bad[0] = torch.nan
    incident = incident_of(PASS_IT_ON[name], bad)
    assert incident.cause is not None
    assert (incident.phase, incident.cause.slug) == ("data", "bad_input_data")
    assert incident.cause.summary == "a tensor that the loss reads without a gradient is non-finite: wanted"


def test_an_operation_that_makes_nan_of_what_it_needs_is_to_blame() -> None:
    incident = incident_of(lambda out, wanted: torch.lerp((-out.abs()).sqrt(), wanted, 0.5), torch.zeros(6, 4))
    assert (incident.phase, incident.op) == ("forward", "aten.sqrt")


def test_a_layer_without_a_bias_hides_nothing() -> None:
    flat = torch.full((3, 3), 1e38)
    incident = incident_of(lambda out, wanted: nn.functional.linear(out[:, :3] * 1e38, flat - 2 * flat.tril()), flat)
    assert incident.op != "data"
    assert incident.phase == "forward"


def test_the_rows_of_a_tensor_that_nobody_knows_are_no_samples() -> None:
    incident = incident_of(lambda out, _: out * torch.full((6, 4), torch.nan), None)
    assert incident.cause is not None
    assert not incident.cause.proven
    assert incident.cause.summary.endswith("non-finite: an operand of aten.mul")
    assert incident.samples == ()
