"""What a refused step puts back beside the model's own state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from guard.loops import batches, make_run, poison
from nantrap import Guard


class Centred(nn.Module):
    """A loss with a running mean and a learnable scale: neither belongs to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, y: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return (self.scale * (y - self.mean)).square().mean()


def test_a_loss_module_beside_the_model() -> None:
    torch.manual_seed(0)
    model, loss = nn.Linear(6, 3), Centred()
    guard = Guard(model, torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1), also=[loss], quiet=True)
    data = batches(3)
    assert guard.attempt(lambda b: loss(model(b[0])), data[0]).applied
    before = loss.mean.clone()
    incident = guard.attempt(lambda b: loss(model(b[0])), poison(data[1])).incident
    assert incident is not None
    assert incident.restored is True
    assert torch.equal(before, loss.mean)
    assert "centred.scale" in {finding.name for finding in incident.findings}
    assert guard.attempt(lambda b: loss(model(b[0])), data[2]).applied


class Codebook(nn.Module):
    """Its forward pass writes a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.code = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        with torch.no_grad():
            self.code.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return y - self.code.detach() + 0 * self.code


@pytest.mark.parametrize("bad", [0, 1, 4])
@pytest.mark.parametrize("diagnose", ["full", "off"])
def test_a_parameter_that_the_forward_pass_writes(bad: int, diagnose: str) -> None:
    from nantrap import Policy

    run = make_run(model=Codebook)
    guard = run.guard(policy=Policy(diagnose=diagnose))  # type: ignore[arg-type]
    for step, batch in enumerate(run.batches[:6]):
        before = run.model.code.detach().clone()
        outcome = guard.attempt(run.forward, poison(batch) if step == bad else batch)
        assert outcome.applied is (step != bad)
        if step == bad:
            assert outcome.incident is not None
            assert outcome.incident.restored is True
            assert torch.equal(before, run.model.code)
        else:
            assert not torch.equal(before, run.model.code)


def test_a_disabled_scaler_is_no_scaler() -> None:
    run = make_run(scaler=lambda: torch.amp.GradScaler("cpu", enabled=False))
    guard = run.guard()
    assert guard.attempt(run.forward, run.batches[0]).applied
    assert not guard.attempt(run.forward, poison(run.batches[1])).applied
    assert guard.attempt(run.forward, run.batches[2]).applied


def test_a_guard_does_not_clip_unless_asked() -> None:
    torch.manual_seed(0)
    plain, guarded = nn.Linear(6, 3), nn.Linear(6, 3)
    guarded.load_state_dict(plain.state_dict())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
    guard = Guard(guarded, torch.optim.SGD(guarded.parameters(), lr=0.01), quiet=True)
    for x, y in batches(4):
        loss = 100 * nn.functional.mse_loss(plain(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert guard.attempt(lambda b: 100 * nn.functional.mse_loss(guarded(b[0]), b[1]), (x, y)).grad_norm > 1
    assert torch.equal(plain.weight, guarded.weight)
