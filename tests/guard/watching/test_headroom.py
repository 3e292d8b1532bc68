"""The early warning: headroom by module, its trend, and its cost when it is off."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nantrap


class Growing(nn.Module):
    """Its first layer's output doubles in each step; the second casts it to float16, which ends at 65504."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Identity()
        self.cast = nn.Identity()
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cast(self.scale(x).half()).float())


def run(every: int, steps: int, capsys: pytest.CaptureFixture[str]) -> tuple[str, list[nantrap.Incident]]:
    torch.manual_seed(0)
    model = Growing()
    policy = nantrap.Policy(sampling=nantrap.Sampling(headroom_every=every), spikes="off", diagnose="locate")
    incidents = []
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.0), policy=policy) as guard:
        for step in range(steps):
            outcome = guard.attempt(lambda batch: model(batch).mean(), torch.full((2, 4), 2.0 ** (step / 2)))
            incidents += [outcome.incident] if outcome.incident else []
    return capsys.readouterr().err, incidents


def test_an_overflow_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    said, incidents = run(2, 20, capsys)
    assert not incidents
    assert "step 6: module cast has 13.0 bits of headroom left and overflows in about 26 steps at this pace" in said
    assert "module head has" not in said, "the head is in float32 and has a hundred bits left"


def test_a_level_run_is_not_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    policy = nantrap.Policy(sampling=nantrap.Sampling(headroom_every=1))
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), policy=policy) as guard:
        for _ in range(30):
            guard.attempt(lambda batch: model(batch).square().mean(), torch.randn(8, 4))
    assert "headroom" not in capsys.readouterr().err


def test_the_incident_shows_the_trend(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)

    class Hot(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.grow = nn.Linear(1, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.float16):
                return self.grow(x).float()

    model = Hot()
    nn.init.ones_(model.grow.weight)
    guard = nantrap.Guard(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        policy=nantrap.Policy(sampling=nantrap.Sampling(headroom_every=2), spikes="off"),
    )
    incident = None
    for step in range(12):
        # two factors below float16's limit whose product is not
        model.grow.weight.data.fill_(2.0**step)
        incident = guard.attempt(lambda batch: model(batch).mean(), torch.full((2, 1), 2.0**step)).incident
        if incident:
            break
    assert incident is not None
    assert incident.module == "grow"
    assert list(incident.headroom) == ["0", "2", "4", "6"]
    bits = list(incident.headroom.values())
    assert bits[0] - bits[1] == pytest.approx(4.0, abs=0.01)
    assert nantrap.Incident.from_dict(incident.to_dict()) == incident
    guard.close()
    assert "= headroom: 16.0 -> 12.0 -> 8.0 -> 4.0 bits in grow, steps 0 to 6" in capsys.readouterr().err


def test_off_by_default_and_no_hook_is_left() -> None:
    model = nn.Linear(2, 1)
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), quiet=True) as guard:
        guard.attempt(lambda batch: model(batch).mean(), torch.ones(2, 2))
    assert not model._forward_hooks
    assert nantrap.Policy().sampling.headroom_every == 0
