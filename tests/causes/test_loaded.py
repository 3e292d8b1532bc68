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
    assert cause.evidence[1].text == "load_state_dict wrote the model since the last step, and left it non-finite"


def made_by_the_program(kind: str) -> nn.Module:
    """A model that is not finite from the start, and was not loaded so."""
    model = nn.Linear(4, 3)
    with torch.no_grad():
        if kind == "a row divided by its length of 0":
            model.weight[1] = 0.0
            model.weight.div_(model.weight.norm(dim=1, keepdim=True))
        elif kind == "the logarithm of a count of 0":
            model.bias.copy_(torch.tensor([3.0, 0.0, 5.0]).log())
        elif kind == "rows that are missing from a table":
            table = torch.randn(3, 4)
            table[1:] = math.nan
            model.weight = nn.Parameter(table)
        elif kind == "a layer of NaN":
            model.weight.fill_(math.nan)
        else:
            model.register_buffer("scale", 1.0 / torch.tensor([0.0, 1.0, 2.0]))
    return model


@pytest.mark.parametrize(
    "kind",
    [
        "a row divided by its length of 0",
        "the logarithm of a count of 0",
        "rows that are missing from a table",
        "a layer of NaN",
        "a buffer with a division by 0",
    ],
)
def test_what_the_program_made_bad_is_not_called_proven(kind: str) -> None:
    """No step was applied, and nothing was seen to load it: a file or an expression, nothing tells which."""
    torch.manual_seed(0)
    model = made_by_the_program(kind)
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), quiet=True) as guard:
        outcome = guard.attempt(lambda x: (model(x) * getattr(model, "scale", 1.0)).square().mean(), torch.randn(4, 4))
    assert outcome.incident is not None
    assert [cause.slug for cause in outcome.incident.causes if cause.proven] == []


def test_a_healthy_file_is_not_blamed_for_what_is_written_after_it() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), quiet=True) as guard:
        guard.attempt(lambda x: model(x).square().mean(), torch.randn(4, 4))
        model.load_state_dict(copy.deepcopy(model.state_dict()))
        model.weight.data[1] /= 0.0
        outcome = guard.attempt(lambda x: model(x).square().mean(), torch.randn(4, 4))
    assert outcome.incident is not None
    assert "corrupt_checkpoint" not in [cause.slug for cause in outcome.incident.causes]


def test_a_running_average_that_the_program_writes_is_not_called_proven() -> None:
    """It is bad before the step: a pass that was not guarded wrote it, or other code."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4)
    model = nn.Sequential(norm, nn.Linear(4, 1))
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), quiet=True) as guard:
        guard.attempt(lambda x: model(x).square().mean(), torch.randn(8, 4))
        assert norm.running_mean is not None
        norm.running_mean.fill_(math.nan)
        outcome = guard.attempt(lambda x: model(x).square().mean(), torch.randn(8, 4))
    assert outcome.incident is not None
    assert not any(cause.proven for cause in outcome.incident.causes)


def test_a_copy_that_is_no_average_is_not_called_one() -> None:
    """A target network that a hook of the update divides by 0."""
    torch.manual_seed(0)
    net, target = nn.Linear(4, 1), nn.Linear(4, 1).requires_grad_(False)
    model = nn.ModuleDict({"net": net, "target": target})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    steps: list[int] = []

    def reset(*_: object) -> None:
        steps.append(1)
        if len(steps) == 2:
            target.weight.data.div_(torch.zeros(()))

    optimizer.register_step_post_hook(reset)
    with nantrap.Guard(model, optimizer, quiet=True) as guard:
        for _ in range(2):
            outcome = guard.attempt(lambda x: net(x).square().mean(), torch.randn(8, 4))
    assert outcome.incident is not None
    assert not any(cause.proven for cause in outcome.incident.causes)
    assert "averaged" not in outcome.incident.causes[0].summary
