"""Faults in the loss function, in both forms: in the two-line form the live graph must tell what a replay cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nantrap.locate.replay.root_call import RootCall, note_loss_part

pytestmark = pytest.mark.usefixtures("graph_only")


class Scale(nn.Module):
    """The identity with a parameter: what goes in comes out, with a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * x


good = torch.tensor([[0.2, 0.4, 0.6], [0.3, 0.5, 0.7]])
zeros = torch.zeros(2, 3)
ones = torch.ones(2, 3)
labels = torch.tensor([0, 2])
Loss = Callable[[Any, Tensor], Tensor]

FORWARD: dict[str, tuple[Loss, Tensor, str, str]] = {
    "log": (lambda m, b: m(b).log().mean(), zeros, "aten.log", "LogBackward0"),
    "div": (lambda m, b: (b / m(b).sum()).mean(), zeros, "aten.div", "DivBackward0"),
    "pow": (lambda m, b: m(b).square().mean(), ones * 1e30, "aten.pow", "PowBackward0"),
    "exp": (lambda m, b: m(b).exp().mean(), ones * 1e3, "aten.exp", "ExpBackward0"),
    "mse_loss": (lambda m, b: F.mse_loss(m(b), good), ones * 1e30, "aten.mse_loss", "MseLossBackward0"),
    "masked softmax": (
        lambda m, b: m(b).masked_fill(b < 0.1, float("-inf")).softmax(-1).mean(),
        zeros,
        "aten._softmax",
        "SoftmaxBackward0",
    ),
    "nothing left": (lambda m, b: m(b)[b > 0.1].mean(), zeros, "aten.mean", "MeanBackward0"),
    "all ignored": (
        lambda m, b: F.cross_entropy(m(b), torch.where(b[:, 0] > 0.1, labels, -100)),
        zeros,
        "aten.nll_loss_forward",
        "NllLossBackward0",
    ),
    "cast": (lambda m, b: m(b).half().float().mean(), ones * 1e6, "aten._to_copy", "ToCopyBackward0"),
    "half sum": (lambda m, b: (m(b).half() * 100).sum(), ones * 200, "aten.sum", "SumBackward0"),
    "0 * inf": (
        lambda m, b: (m(b).masked_fill(b > 0.9, float("-inf")).log_softmax(-1) * (b < 0.9)).mean(),
        torch.tensor([[0.2, 1.0, 0.6], [0.3, 0.5, 0.7]]),
        "aten.mul",
        "MulBackward0",
    ),
    "cosh": (lambda m, b: m(b).cosh().log().mean(), ones * 100, "aten.cosh", "CoshBackward0"),
    "asin": (lambda m, b: m(b).asin().mean(), ones * 1.5, "aten.asin", "AsinBackward0"),
    "logsumexp": (
        lambda m, b: torch.logsumexp(m(b) + 3e38 * (b > 2), -1).mean(), ones * 3e38, "aten.add", "AddBackward0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARD)
def test_a_bad_loss(name: str, first_incident: Any) -> None:
    loss, bad, op, node = FORWARD[name]
    model = Scale()
    incident = first_incident(model, lambda batch: loss(model, batch), [good, bad])
    assert incident is not None
    assert (incident.step, incident.phase, incident.module, incident.op) == (1, "forward", "loss", op)
    if first_incident.form == "twoline":
        assert incident.node == node


BACKWARD: dict[str, tuple[Loss, Tensor, str, str]] = {
    "sqrt": (lambda m, b: m(b).sqrt().mean(), zeros, "aten.div", "SqrtBackward0"),
    "pow": (lambda m, b: (m(b) ** 0.5).mean(), zeros, "aten.pow", "PowBackward0"),
    "acos": (lambda m, b: m(b).acos().mean(), ones, "aten.rsqrt", "AcosBackward0"),
    "where log": (lambda m, b: torch.where(b > 0.1, m(b).log(), m(b)).sum(), zeros, "aten.div", "LogBackward0"),
    "index": (lambda m, b: (m(b) / m(b))[:1].mean(), torch.cat([ones[:1], zeros[:1]]), "aten.div", "DivBackward0"),
    "sqrt of var": (lambda m, b: m(b).var(0).sqrt().mean(), ones, "aten.div", "SqrtBackward0"),
    "hypot": (lambda m, b: torch.hypot(m(b), m(b)).mean(), zeros, "aten.div", "HypotBackward0"),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_a_finite_loss_with_bad_gradients(name: str, first_incident: Any) -> None:
    loss, bad, op, node = BACKWARD[name]
    model = Scale()
    incident = first_incident(model, lambda batch: loss(model, batch), [good, bad])
    assert incident is not None
    assert (incident.step, incident.phase, incident.module) == (1, "backward", "loss")
    assert incident.node == node
    if name != "hypot":  # a compound formula whose parts may differ between releases
        assert incident.op == op


def test_a_scale_that_overflows_on_the_way_back(twoline: Any) -> None:
    model = Scale().half()
    incident = twoline(model, lambda b: model(b.half()).float().sum() * 1e6, [good])
    assert (incident.phase, incident.module, incident.op) == ("backward", "loss", "aten._to_copy")


def test_a_nan_target_is_data(twoline: Any) -> None:
    model = Scale()

    def loss(batch: dict[str, Tensor]) -> Tensor:
        return F.mse_loss(model(batch["x"]), batch["y"])

    broken = good.clone()
    broken[1, 2] = float("nan")
    for batch in ({"x": good, "y": broken},):  # the caller holds the batch, as in a training loop
        incident = twoline(model, loss, [batch])
    assert (incident.phase, incident.module) == ("data", "data")
    assert incident.findings[0].name.endswith("y")
    assert incident.samples == (1,)


def test_a_nan_target_that_is_subtracted_is_data(twoline: Any) -> None:
    model = Scale()
    batch = (good, good * float("nan"))
    incident = twoline(model, lambda b: (model(b[0]) - b[1]).abs().mean(), [batch])
    assert (incident.phase, incident.module) == ("data", "data")


def test_what_was_made_without_a_graph_is_not_guessed(twoline: Any) -> None:
    model = Scale()
    incident = twoline(model, lambda b: (model(b) - b / b).abs().mean(), [good, zeros])
    assert (incident.phase, incident.module, incident.op) == ("forward", "loss", None)
    assert any("computed outside the graph" in note for note in incident.notes)


def test_a_bad_parameter_of_the_loss_is_state(twoline: Any) -> None:
    model = Scale()
    with torch.no_grad():
        model.gain.fill_(float("nan"))
    incident = twoline(model, lambda b: (model.gain * b).mean(), [good])
    assert (incident.phase, incident.op) == ("state", "aten.mul")
    assert incident.findings[0].name == "gain"


def test_the_note_keeps_nothing_large_and_stops_at_the_model() -> None:
    model = Scale()
    call = RootCall((), {}, None, None)  # type: ignore[arg-type]
    out = model(torch.ones(2048, 1024))
    call.watch_output(out)
    part = note_loss_part((out.sqrt() * 2).mean(), call)
    assert part is not None
    assert [node.name() for node in part.nodes] == ["MeanBackward0", "MulBackward0", "SqrtBackward0"]
    kept = [t for saved in part.saved if saved for t in saved if t is not None]
    assert sum(t.nbytes for t in kept) < 1024


def watched_call(output: Any) -> RootCall:
    call = RootCall((), {}, None, None)  # type: ignore[arg-type]
    call.watch_output(output)
    return call


def test_the_gradient_of_an_output_is_kept_and_the_output_is_left_as_it_was() -> None:
    out = torch.ones(3, requires_grad=True) * 2
    call = watched_call(out)
    assert out._backward_hooks is None
    assert call.cotangents == {}
    (out * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert call.cotangents["batch"].tolist() == [1.0, 2.0, 3.0]


def test_the_gradients_of_several_outputs_of_one_operation_are_told_apart() -> None:
    first, second, third = torch.arange(3.0, requires_grad=True).unbind()
    call = watched_call((first, second, third))
    (5 * second + 7 * third).backward()
    assert {path: float(gradient) for path, gradient in call.cotangents.items()} == {"[1]": 5.0, "[2]": 7.0}


def test_a_gradient_that_a_hook_of_the_program_may_change_is_not_relied_on() -> None:
    out = torch.ones(3, requires_grad=True) * 2
    call = watched_call(out)
    out.register_hook(lambda gradient: gradient * 10)
    out.sum().backward()
    assert call.cotangents == {}


def test_the_note_of_a_deep_graph_is_capped() -> None:
    loss = torch.ones(1, requires_grad=True).sum()
    for _ in range(1000):
        loss = loss.sin()
    part = note_loss_part(loss, None)
    assert part is not None
    assert len(part.nodes) == 64


def test_a_custom_function_is_found_by_elimination(twoline: Any) -> None:
    model = Scale()

    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            (x,) = ctx.saved_tensors
            return gradient / x

    incident = twoline(model, lambda b: Bad.apply(model(b)).sum(), [good, zeros])
    assert (incident.phase, incident.module, incident.node) == ("backward", "loss", "BadBackward")
    assert any("elimination" in note for note in incident.notes)
