"""Constants that half precision swallows, weight norms of nothing, states that were saved too late."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import nantrap
from nantrap.incident import Incident
from torch_habits import CLAMP_PASSES_AT_ITS_BOUND

at_the_bound = pytest.mark.skipif(
    not CLAMP_PASSES_AT_ITS_BOUND, reason="clamp of this torch has a slope of 0 at its bound"
)


def incident_of(model: nn.Module, loss: Callable[[Tensor], Tensor], batch: Tensor) -> Incident:
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), quiet=True) as guard:
        incident = guard.attempt(loss, batch).incident
    assert incident is not None
    return incident


@pytest.mark.parametrize(
    ("phase", "form"),
    [
        ("backward", lambda y: (y.square().sum(-1) + 1e-8).sqrt()),
        pytest.param("backward", lambda y: y.square().clamp(min=1e-8) ** 0.6, marks=at_the_bound),
        pytest.param("backward", lambda y: y.square().sum(-1).clamp_min(1e-8).sqrt(), marks=at_the_bound),
        ("forward", lambda y: y / (y.norm(dim=-1, keepdim=True) + 1e-8)),
    ],
)
def test_an_epsilon_that_float16_swallows_is_the_cause(phase: str, form: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 3).half()
    nn.init.zeros_(model.bias)
    batch = torch.randn(4, 8).half()
    batch[2] = 0
    incident = incident_of(model, lambda b: form(model(b)).float().mean(), batch)
    assert incident.phase == phase
    assert incident.causes[0].slug == "eps_underflow_half"
    assert incident.causes[0].proven
    assert any("1e-08 is 0 in float16" in evidence.text or "1e-08 is 0" in evidence.text
               for evidence in incident.causes[0].evidence)  # fmt: skip


def test_an_epsilon_that_float32_holds_is_not() -> None:
    model = nn.Linear(8, 3)
    nn.init.zeros_(model.bias)
    batch = torch.randn(4, 8)
    batch[2] = 0
    incident = incident_of(model, lambda b: model(b).square().sum(-1).sqrt().mean(), batch)
    assert incident.causes[0].slug == "singular_gradient_at_zero"


def test_a_weight_norm_of_zeros_is_a_division_by_zero() -> None:
    torch.manual_seed(0)
    normed: Any = weight_norm(nn.Linear(8, 3, bias=False))
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), normed)
    nn.init.zeros_(normed.parametrizations.weight.original1)
    cause = incident_of(model, lambda b: model(b).square().mean(), torch.randn(4, 4)).causes[0]
    assert cause.slug == "division_by_zero"
    assert cause.proven
    assert cause.evidence[0].text == "g·v/|v|: 3 of 3 rows of v are exactly 0; every input is finite"


def test_a_state_that_is_nan_everywhere_was_saved_too_late() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
    model.load_state_dict({name: torch.full_like(t, math.nan) for name, t in model.state_dict().items()})
    incident = incident_of(model, lambda b: model(b).square().mean(), torch.randn(4, 4))
    assert incident.phase == "state"
    assert incident.causes[0].slug == "corrupt_checkpoint"
    assert (
        incident.causes[0].evidence[1].text
        == "more than half of all parameters are non-finite, as in a state that was saved after a bad step"
    )
