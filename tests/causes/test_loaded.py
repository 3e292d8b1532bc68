"""Weights that were loaded in the middle of a run, told apart from weights that the program overwrote."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import nantrap
from nantrap.incident import Incident


def incident_after(change: str) -> Incident:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    found: Incident | None = None
    policy = nantrap.Policy(on_incident="skip")
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), policy=policy, quiet=True) as guard:
        for step in range(4):
            if step == 2:
                saved = copy.deepcopy(model.state_dict())
                saved["weight"][0, 1] = math.nan
                if change == "loaded":
                    model.load_state_dict(saved)
                else:
                    model.load_state_dict({"bias": saved["bias"]}, strict=False)  # a part that was healthy
                    with torch.no_grad():
                        model.weight.copy_(saved["weight"])
            outcome = guard.attempt(lambda x: model(x).square().mean(), torch.randn(4, 3))
            found = found or outcome.incident
    assert found is not None
    return found


@pytest.mark.parametrize(("change", "slug"), [("loaded", "corrupt_checkpoint"), ("written", "state_overwritten")])
def test_who_wrote_it(change: str, slug: str) -> None:
    incident = incident_after(change)
    assert (incident.step, incident.phase) == (2, "state")
    assert incident.causes[0].slug == slug


def test_its_words() -> None:
    cause = incident_after("loaded").causes[0]
    assert cause.proven
    assert cause.summary == "weight was non-finite when it was loaded"
    assert cause.evidence[0].text.endswith("before this step")
    assert cause.evidence[1].text == "load_state_dict wrote the model since the last step"
