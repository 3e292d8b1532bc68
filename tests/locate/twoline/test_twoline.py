"""The two-line form: several calls, parts called directly, wrapped models, and lines inferred from the caller."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nantrap
from nantrap import Policy
from nantrap.locate.replay.root_call import RootCall

pytestmark = pytest.mark.usefixtures("graph_only")

good = torch.tensor([[0.2, 0.4, 0.6], [0.3, 0.5, 0.7]])
zeros = torch.zeros(2, 3)


class Log(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return (self.gain * x).log()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.log = Log()

    def forward(self, x: Tensor) -> Tensor:
        return self.log(x) + self.fc(x)


class OwnLoss(Net):
    measure: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        return self.measure(self.fc(x) * 0.0 + x)


class Sqrt(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sqrt().sum()


def test_a_model_that_computes_its_own_loss(twoline: Any) -> None:
    model = OwnLoss()
    model.measure = Sqrt()
    incident = twoline(model, model, [good, zeros])
    assert (incident.phase, incident.module, incident.op) == ("backward", "measure", "aten.div")
    model.measure = Cosh()
    incident = twoline(model, model, [good, good * 1e4])
    assert (incident.phase, incident.module, incident.op) == ("forward", "measure", "aten.cosh")


class Opaque:
    def __init__(self, value: Tensor) -> None:
        self.value = value


class Wrapped(Net):
    def forward(self, x: Tensor) -> Any:
        return Opaque(super().forward(x))


def test_an_output_of_an_unknown_kind(twoline: Any) -> None:
    model = Wrapped()
    incident = twoline(model, lambda b: model(b).value.mean(), [good, zeros])
    assert (incident.phase, incident.op) == ("forward", "aten.log")
    assert incident.module == "log"


def test_the_first_of_two_calls(twoline: Any) -> None:
    model = Net()
    incident = twoline(model, lambda b: (model(b) @ model(good).t()).mean(), [good, zeros])
    assert (incident.phase, incident.module, incident.op) == ("forward", "log", "aten.log")
    assert incident.call == 0


def test_parts_that_are_called_directly(twoline: Any) -> None:
    model = Net()
    incident = twoline(model, lambda b: model.fc(model.log(b).exp().log()).mean(), [good, zeros])
    assert (incident.phase, incident.module, incident.op) == ("forward", "log", "aten.log")


def test_parts_in_the_first_step_are_read_from_the_graph(twoline: Any) -> None:
    model = Net()
    incident = twoline(model, lambda b: model.log(b).mean(), [zeros])
    assert (incident.phase, incident.op) == ("forward", "aten.log")
    assert any("no call of the model" in note for note in incident.notes)


def test_an_unused_bad_output_is_not_convicted(twoline: Any) -> None:
    class Two(Net):
        def forward(self, x: Tensor) -> Any:
            return self.fc(x), self.log(x)

    model = Two()
    incident = twoline(model, lambda b: (model(b)[0] / b.detach().sum()).sum(), [good, zeros])
    assert (incident.module, incident.op) == ("loss", "aten.div")


def test_the_true_gradient_is_replayed(twoline: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).half()
    incident = twoline(model, lambda b: (model(b.half()) * 30000.0).float().sum() * 1.2, [good])
    assert (incident.phase, incident.module) == ("backward", "2")


def test_autocast_around_the_call(twoline: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))

    def loss(batch: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return model(batch).float().mean()

    incident = twoline(model, loss, [good, good * 1e6])
    assert (incident.phase, incident.op, incident.module) == ("forward", "aten._to_copy", "0")


def test_a_compiled_model(twoline: Any) -> None:
    model = Net()
    compiled = torch.compile(model, backend="eager")
    incident = twoline(compiled, lambda b: compiled(b).mean(), [good, zeros])
    assert (incident.phase, incident.module, incident.op) == ("forward", "log", "aten.log")


def test_the_batch(twoline: Any) -> None:
    model = Net()
    broken = good.clone()
    broken[1, 0] = float("inf")
    incident = twoline(model, lambda b: model(b).mean(), [good, broken])
    assert (incident.phase, incident.module) == ("data", "data")
    assert incident.samples == (1,)


def entropy(p: Tensor) -> Tensor:
    return -(p * p.log2()).sum()


def criterion(model: nn.Module, batch: Tensor) -> Tensor:
    return entropy(model(batch)) + 1.0


def test_the_line_of_the_loss_function_is_inferred() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-9), quiet=True)
    loss = criterion(model, zeros - 100)
    guard.backward(loss)
    incident = guard.step().incident
    assert incident is not None
    assert incident.op == "aten.log2"
    assert incident.source is not None
    assert incident.source.inferred
    assert incident.source.text.strip() == "return -(p * p.log2()).sum()"
    assert incident.source.function == "entropy"
    line = incident.source.text
    assert line[incident.source.column : incident.source.end_column] == "p.log2()"


class Entropy(nn.Module):
    def forward(self, p: Tensor) -> Tensor:
        return -(p * p.log10()).sum()


def test_the_line_of_a_loss_that_is_made_where_it_is_called() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-9), quiet=True)
    loss = Entropy()(model(zeros - 100))
    guard.backward(loss)
    incident = guard.step().incident
    assert incident is not None
    assert incident.source is not None
    assert (incident.source.function, incident.source.inferred) == ("Entropy.forward", True)
    assert incident.source.text.strip() == "return -(p * p.log10()).sum()"


def test_two_lines_that_could_be_meant_are_not_guessed() -> None:
    model = nn.Linear(3, 3)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-9), quiet=True)
    out = model(zeros).sum()
    safe = (out.abs() + 1.0).log10()
    bad = (out - out).log10()
    guard.backward(safe + bad)
    incident = guard.step().incident
    assert incident is not None
    assert incident.op == "aten.log10"
    assert incident.source is None


def test_a_loss_module_is_recognised() -> None:
    model = nn.Linear(3, 3)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-9), quiet=True)
    measure = nn.MSELoss()
    loss = measure(model(good) * 1e30, good)
    guard.backward(loss)
    incident = guard.step().incident
    assert incident is not None
    assert incident.op == "aten.mse_loss"
    assert incident.source is not None
    assert "measure(model(good)" in incident.source.text


class Cosh(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cosh().mean()


def with_a_part(m: Any, batch: Tensor) -> Tensor:
    result: Tensor = m.measure(m(batch))
    return result


def test_a_part_that_the_loss_function_calls_is_named() -> None:
    model = Net()
    model.measure = Cosh()
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-9), quiet=True)
    guard.backward(with_a_part(model, good * 1e4))
    incident = guard.step().incident
    assert incident is not None
    assert (incident.module, incident.op) == ("measure", "aten.cosh")
    assert incident.source is not None
    assert incident.source.inferred
    assert incident.source.function == "Cosh.forward"


def test_the_failed_batch_is_not_kept_alive() -> None:
    model = Net()
    guard = nantrap.Guard(
        model, torch.optim.SGD(model.parameters(), lr=1e-9), quiet=True, policy=Policy(diagnose="locate")
    )

    def loop() -> weakref.ref[Tensor]:
        batch = zeros.clone()
        seen = weakref.ref(batch)
        loss = F.relu(model(batch) * 0.0 + 1.0).log().mean() - model(batch).mean()
        guard.backward(loss)
        assert guard.step().incident is not None
        del batch, loss
        gc.collect()
        return seen

    assert loop()() is None


def test_calls_of_a_validation_loop_are_forgotten() -> None:
    model = Net()
    call: RootCall | None = None
    for _ in range(5):
        later = RootCall((good,), {}, None, None)  # type: ignore[arg-type]
        later.after(call)
        later.watch_output(model(good))
        call = later
    assert call is not None
    assert len(call.chain()) == 1


def test_calls_that_feed_each_other_are_kept() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    one = RootCall((good,), {}, None, None, module=first)  # type: ignore[arg-type]
    out = first(good)
    one.watch_output(out)
    hidden = out.exp().mean(0, keepdim=True)
    del out
    two = RootCall((hidden,), {}, None, None, module=second)  # type: ignore[arg-type]
    two.after(one)
    assert [call.module for call in two.chain()] == [first, second]
