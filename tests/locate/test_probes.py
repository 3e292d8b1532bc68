"""`nantrap.probe`: shown in order, the first bad one marked, nothing kept."""

from __future__ import annotations

import math
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap.locate import probes
from nantrap.locate.probes import read_probes


class Probed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        hidden = nantrap.probe("hidden", self.alpha * x, watch={"alpha": self.alpha, "rate": 0.5})
        return nantrap.probe("log", hidden.log())


good, zeros = torch.ones(2, 3), torch.zeros(2, 3)


@pytest.fixture(autouse=True)
def _no_other_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards of other tests that were not closed and are still alive would keep probes, too."""
    monkeypatch.setattr(probes, "_readers", weakref.WeakSet())
    probes.clear_probes()


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


def test_without_a_guard_nothing_is_kept_alive() -> None:
    """A model with probes is trained without a guard, too: 4,096 activations would fill the memory."""
    value = torch.ones(3)
    alive = weakref.ref(value)
    assert nantrap.probe("x", value) is value
    del value
    assert alive() is None
    assert read_probes() == ()


def test_the_list_ends_with_its_guard() -> None:
    model = Probed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nantrap.Guard(model, optimizer, quiet=True):
        model(good)
        assert [probe.name for probe in read_probes()] == ["hidden", "log"]
    assert read_probes() == ()
    model(good)
    assert read_probes() == ()


def test_of_an_evaluation_between_two_steps_the_last_probes_are_kept() -> None:
    model = Probed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nantrap.Guard(model, optimizer, quiet=True) as guard:
        with torch.no_grad():
            for batch in range(200):
                model(good + batch)
        assert len(read_probes()) == 64
        assert read_probes()[-1].stats.max == pytest.approx(math.log(200))
        assert guard.attempt(lambda b: model(b).mean(), good).applied
        assert read_probes() == ()


def test_the_list_has_an_end() -> None:
    model = Probed()
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), quiet=True):
        for _ in range(2100):
            model(good)
        assert len(read_probes()) <= 4096
