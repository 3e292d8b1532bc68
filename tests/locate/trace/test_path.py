"""The way of the bad values after the origin: the operations that carried them, in order, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nantrap


class Net(nn.Module):
    """The logarithm of 0 in `net.1` is where it begins; a branch that is finite must not appear."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.log = Log()
        self.head = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        beside = self.first(x).tanh()
        bad = self.log(x)
        unused = bad.sin()
        assert unused.shape == bad.shape
        out: Tensor = self.head(bad + beside)
        return out


class Log(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.log()


def failed(*, attempt: bool) -> nantrap.Incident:
    torch.manual_seed(0)
    model = Net()
    batch = torch.ones(4, 3)
    batch[1, 2] = 0.0
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), quiet=True) as guard:
        if attempt:
            outcome = guard.attempt(lambda given: model(given).square().mean(), batch)
        else:
            guard.backward(model(batch).square().mean())
            outcome = guard.step()
    assert outcome.incident is not None
    return outcome.incident


@pytest.mark.parametrize("attempt", [True, False])
def test_the_operations_between_the_origin_and_the_loss(attempt: bool) -> None:
    incident = failed(attempt=attempt)
    assert (incident.op, incident.module) == ("aten.log", "log")
    path = [(frame.op, frame.module, frame.share) for frame in incident.path]
    assert path == [
        ("aten.add", "loss", 1 / 12),
        ("aten.addmm", "head", 0.25),
        ("aten.pow", "loss", 0.25),
        ("aten.mean", "loss", 1.0),
    ]
    assert not any(frame.origin or frame.left_out for frame in incident.path)
    assert all(frame.line for frame in incident.path)


def test_a_bad_batch_is_followed_from_its_first_reader() -> None:
    model = nn.Linear(2, 1)
    batch = torch.tensor([[1.0, 2.0], [float("nan"), 2.0]])
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), quiet=True) as guard:
        incident = guard.attempt(lambda given: model(given).mean(), batch).incident
    assert incident is not None
    assert incident.phase == "data"
    assert [(frame.op, frame.share) for frame in incident.path] == [("aten.addmm", 0.5), ("aten.mean", 1.0)]


def test_in_the_backward_pass_it_leads_to_the_gradients() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    nn.init.zeros_(model[1].weight)  # type: ignore[arg-type]
    nn.init.zeros_(model[1].bias)  # type: ignore[arg-type]
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), quiet=True) as guard:
        incident = guard.attempt(lambda given: model(given).sqrt().mean(), torch.ones(2, 2)).incident
    assert incident is not None
    assert incident.phase == "backward"
    assert incident.path
    assert {frame.phase for frame in incident.path} == {"backward"}


def test_of_very_many_operations_the_first_and_the_last_are_kept() -> None:
    model = nn.Linear(2, 1)

    def loss_of(given: Tensor) -> Tensor:
        out = (model(given) - model(given)).log()
        for _ in range(100):
            out = out + 1.0
        return out.mean()

    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), quiet=True) as guard:
        incident = guard.attempt(loss_of, torch.ones(2, 2)).incident
    assert incident is not None
    assert len(incident.path) == 48
    assert [frame.left_out for frame in incident.path if frame.left_out] == [53]
    assert incident.path[24].left_out == 53
    assert incident.path[-1].op == "aten.mean"
