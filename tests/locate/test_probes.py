"""`nantrap.probe`: shown in order, the first bad one marked, nothing kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap.locate.probes import read_probes


class Probed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        hidden = nantrap.probe("hidden", self.alpha * x, watch={"alpha": self.alpha, "rate": 0.5})
        return nantrap.probe("log", hidden.log())


good, zeros = torch.ones(2, 3), torch.zeros(2, 3)


def check(incident: Any) -> None:
    assert [(probe.name, probe.first_bad) for probe in incident.probes] == [("hidden", False), ("log", True)]
    assert incident.probes[0].watch == {"alpha": pytest.approx(1.0), "rate": 0.5}
    assert incident.probes[0].stats.shape == (2, 3)
    assert incident.probes[1].stats.neginf == 6


def test_after_a_failure(first_incident: Any) -> None:
    model = Probed()
    check(first_incident(model, lambda b: model(b).mean(), [good, zeros]))
    assert read_probes() == ()


def test_under_autocast(first_incident: Any) -> None:
    model = Probed()

    def loss(batch: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(batch).mean()

    check(first_incident(model, loss, [good, zeros]))


def test_in_a_compiled_model_the_replay_speaks(attempt: Any) -> None:
    model = Probed()
    compiled = torch.compile(model, backend="eager")
    incident = attempt(compiled, lambda b: compiled(b).mean(), [good, zeros])
    check(incident)
    assert incident.op == "aten.log"


def test_a_healthy_step_keeps_nothing(first_incident: Any) -> None:
    model = Probed()
    assert first_incident(model, lambda b: model(b).mean(), [good, good]) is None
    assert read_probes() == ()


def test_outside_a_guarded_loop_the_list_stays_short() -> None:
    for _ in range(5000):
        nantrap.probe("x", good)
    assert len(read_probes()) <= 4096
    nantrap.locate.clear_probes()
