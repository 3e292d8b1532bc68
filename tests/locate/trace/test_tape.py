"""Recorded operations run again: the same loss and gradients as the step gave, without its Python code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nantrap.guard.armed import LiveTrace
from nantrap.locate.trace import Op, Registered
from nantrap.locate.trace.tape import Tape, substituting


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.5)
        self.outer = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.outer(self.dropout(torch.relu(self.norm(self.inner(x)))))
        return result


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 0, 1, 1])
Compute = Callable[[Net], Tensor]


def cross_entropy(net: Net) -> Tensor:
    return F.cross_entropy(net(X), Y)


def detached_and_not(net: Net) -> Tensor:
    out = net(X)
    return (out * out.detach().exp()).mean() + out.square().mean()


def in_place_and_views(net: Net) -> Tensor:
    out = net(X).clone()
    out[:, 1] = out[:, 0] * 2.0
    out.add_(1.0)
    return out.square().sum()


def random_numbers(net: Net) -> Tensor:
    noise = torch.randn(5, 2)
    keep = torch.empty(5, 2).bernoulli_(0.5)
    return ((net(X) + noise) * keep).square().mean()


def without_gradient(net: Net) -> Tensor:
    out = net(X)
    with torch.no_grad():
        weight = out.softmax(-1)
    return (weight * out).sum()


def gradient_penalty(net: Net) -> Tensor:
    x = X.clone().requires_grad_()
    (slope,) = torch.autograd.grad(net.inner(x).tanh().sum(), x, create_graph=True)
    return slope.square().sum().sqrt()


def under_autocast(net: Net) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = net(X)
    return out.float().square().mean()


def record(compute: Compute) -> tuple[Net, Tensor, list[Tensor | None], Tape]:
    torch.manual_seed(0)
    net = Net()
    trace = LiveTrace(net, Registered(dict(net.named_parameters()), dict(net.named_buffers())))
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    with trace:
        loss = compute(net)
        loss.backward()
    for name, buffer in net.named_buffers():
        buffer.copy_(buffers[name])
    gradients = [parameter.grad for parameter in net.parameters()]
    for parameter in net.parameters():
        parameter.grad = None
    return net, loss, gradients, trace.tape


@pytest.mark.parametrize(
    "compute",
    [
        cross_entropy, detached_and_not, in_place_and_views, random_numbers, without_gradient, gradient_penalty,
        under_autocast,
    ],
)  # fmt: skip
def test_the_same_loss_and_the_same_gradients(compute: Compute) -> None:
    net, loss, gradients, tape = record(compute)
    forward = tape.forward(loss)
    assert forward is not None, tape.reason
    stream = torch.get_rng_state()
    again = forward(())
    again.backward()
    assert torch.equal(again.detach(), loss.detach())
    for before, parameter in zip(gradients, net.parameters(), strict=True):
        assert (before is None) == (parameter.grad is None)
        assert before is None or (parameter.grad is not None and torch.equal(before, parameter.grad))
    assert torch.equal(stream, torch.get_rng_state()), "what was drawn is not drawn again"


def test_one_operation_replaced() -> None:
    def compute(net: Net) -> Tensor:
        return (net(X).sum(-1) * 0).log().mean()

    _, loss, _, tape = record(compute)
    forward = tape.forward(loss)
    assert forward is not None

    def floor(op: Op, args: tuple[Tensor, ...], kwargs: dict[str, object]) -> object:
        return args[0].clamp(min=1.0).log() if op.name == "aten.log" else NotImplemented

    assert not bool(forward(()).isfinite())
    with substituting(floor):
        assert float(forward(()).detach()) == 0.0
    assert not bool(forward(()).isfinite())


def test_a_write_into_memory_of_the_program_is_not_repeated() -> None:
    counter = torch.zeros(())

    def compute(net: Net) -> Tensor:
        counter.add_(1.0)
        return net(X).mean()

    _, loss, _, tape = record(compute)
    assert tape.forward(loss) is None
    assert tape.reason == "aten.add_.Tensor wrote into memory that existed before the step"
    assert float(counter) == 1.0
