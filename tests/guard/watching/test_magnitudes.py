"""How large the suspect was over the last steps: sampled in a healthy run, and measured by making the steps again."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap.incident import Magnitudes


class Net(nn.Module):
    """`inside.grow` is where its values grow; the root's own output is that of its head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inside = nn.Sequential()
        self.inside.add_module("grow", nn.Identity())
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.inside(self.first(x)))
        return out


def diverging(*, attempt: bool, **policy: Any) -> tuple[list[nantrap.Outcome], nantrap.Guard]:
    """A learning rate far beyond the stability limit: the loss grows until it overflows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    guard = nantrap.Guard(model, optimizer, policy=nantrap.Policy(spikes="off", **policy), quiet=True)
    outcomes = []

    def loss_of(batch: Tensor) -> Tensor:
        return (model(batch) - 1.0).square().mean()

    for _ in range(40):
        batch = torch.randn(16, 8)
        if attempt:
            outcomes.append(guard.attempt(loss_of, batch))
        else:
            guard.backward(loss_of(batch))
            outcomes.append(guard.step())
        if outcomes[-1].incident is not None:
            break
    guard.close()
    return outcomes, guard


def sampled(incident: nantrap.Incident) -> Magnitudes:
    (found,) = [one for one in incident.magnitudes if one.how == "sampled"]
    return found


def steps_of(found: Magnitudes) -> list[int]:
    return [int(step) for step in found.by_step]


@pytest.mark.parametrize("attempt", [True, False])
def test_an_incident_shows_how_large_the_suspect_was_by_default(attempt: bool) -> None:
    outcomes, _ = diverging(attempt=attempt)
    incident = outcomes[-1].incident
    assert incident is not None
    found = sampled(incident)
    expected = [step for step in (1, 2, 4, 8, 16, 32) if step < incident.step]
    assert steps_of(found) == expected
    assert found.dtype == "float32"
    assert all(math.isfinite(number) and number > 0 for number in found.by_step.values())
    assert nantrap.Incident.from_dict(incident.to_dict()).magnitudes == incident.magnitudes


def test_attempt_makes_the_last_steps_again_and_measures_the_guilty_operation() -> None:
    outcomes, _ = diverging(attempt=True)
    incident = outcomes[-1].incident
    assert incident is not None
    assert incident.op is not None
    repeated = incident.magnitudes[0]
    assert repeated.how == "repeated"
    assert repeated.of == f"the result of {incident.op} in {incident.module}"
    assert steps_of(repeated) == list(range(incident.step))[-32:]
    numbers = list(repeated.by_step.values())
    assert numbers[-1] > 1e6 * numbers[0], "it grew until it overflowed"


def test_steps_that_do_not_end_in_the_failure_again_are_not_shown() -> None:
    """The loop itself writes the weights between the steps, so that the steps alone do not lead there."""
    torch.manual_seed(0)
    model = Net()
    guard = nantrap.Guard(
        model, torch.optim.SGD(model.parameters(), lr=1e-9), policy=nantrap.Policy(spikes="off"), quiet=True
    )
    incident = None
    for _ in range(60):
        with torch.no_grad():
            model.first.weight.mul_(8.0)
        incident = guard.attempt(lambda batch: model(batch).square().mean(), torch.ones(2, 4)).incident
        if incident is not None:
            break
    guard.close()
    assert incident is not None
    assert [one.how for one in incident.magnitudes] == ["sampled"]


def test_the_suspect_is_the_module_or_the_one_around_it() -> None:
    torch.manual_seed(0)
    model = Net()

    class Cut(nn.Module):
        """Called by name and not as a module: its own output is not seen."""

        def log_of(self, x: Tensor) -> Tensor:
            return x.log()

    model.inside.add_module("cut", Cut())
    model.inside.forward = lambda x: model.inside.cut.log_of(x - x + 1.0)  # type: ignore[method-assign, union-attr, operator]
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.0), quiet=True)
    for _ in range(6):
        guard.attempt(lambda batch: model(batch).mean(), torch.ones(2, 4))
    model.inside.forward = lambda x: model.inside.cut.log_of(x - x)  # type: ignore[method-assign, union-attr, operator]
    incident = guard.attempt(lambda batch: model(batch).mean(), torch.ones(2, 4)).incident
    guard.close()
    assert incident is not None
    assert incident.module == "inside"
    assert sampled(incident).of == "the output of inside"
    assert steps_of(sampled(incident)) == [1, 2, 4]


OFTEN, NEVER = nantrap.Sampling(headroom_every=1), nantrap.Sampling(magnitudes_every=0)


def run(model: nn.Module, *, steps: int, **policy: Any) -> tuple[list[float], list[Tensor]]:
    guard = nantrap.Guard(
        model, torch.optim.AdamW(model.parameters(), lr=0.01), policy=nantrap.Policy(**policy), quiet=True
    )
    losses = []
    for step in range(steps):
        torch.manual_seed(step)
        batch = torch.randn(8, 4)
        guard.backward(model(batch).square().mean())
        losses.append(guard.step().loss)
        assert not any(module._forward_hooks for name, module in model.named_modules() if name), "no hook is left"
    guard.close()
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


def test_a_sampled_run_is_the_same_run_bit_for_bit() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.GELU(), nn.Linear(8, 1))
    other = copy.deepcopy(model)
    often, never = run(model, steps=20, sampling=OFTEN), run(other, steps=20, sampling=NEVER)
    assert often[0] == never[0]
    assert all(torch.equal(a, b) for a, b in zip(often[1], never[1], strict=True))


@pytest.mark.parametrize("policy", [{"sampling": NEVER}, {"diagnose": "locate", "sampling": NEVER}])
def test_it_can_be_turned_off(policy: dict[str, Any]) -> None:
    outcomes, _ = diverging(attempt=False, **policy)
    incident = outcomes[-1].incident
    assert incident is not None
    assert not incident.magnitudes


def test_after_an_incident_every_step_is_sampled_for_a_while() -> None:
    torch.manual_seed(0)
    model = Net()
    policy = nantrap.Policy(spikes="off", max_consecutive_skips=50)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.0), policy=policy, quiet=True)

    def loss_of(batch: Tensor) -> Tensor:
        return model(batch).mean().log()

    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.fill_(1.0)
    for step in range(70):
        with torch.no_grad():
            model.head.bias.fill_(0.0 if step in (65, 69) else 1.0)
        last = guard.attempt(loss_of, torch.ones(2, 4))
    guard.close()
    assert last.incident is not None
    assert steps_of(sampled(last.incident))[-4:] == [64, 66, 67, 68]


def test_a_compiled_model_gets_no_hook_and_is_compiled_once() -> None:
    torch.manual_seed(0)
    model = Net()
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.0), quiet=True)
    for step in range(6):
        scale = math.inf if step == 5 else 1.0
        guard.backward(compiled(torch.full((2, 4), scale)).mean())
        incident = guard.step().incident
    guard.close()
    torch.compiler.reset()
    assert incident is not None
    assert not incident.magnitudes
    assert len(graphs) == 1


class Small(nn.Module):
    """Gives a tensor of a dtype for which torch has no norm."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x.detach().to(torch.float8_e4m3fn)


def test_a_tensor_that_cannot_be_measured_ends_the_sampling_and_not_the_run() -> None:
    model = Net()
    model.inside = nn.Sequential(Small())
    model.forward = lambda x: model.head(model.inside(model.first(x))[0])  # type: ignore[method-assign]
    losses, _ = run(model, steps=6, sampling=OFTEN)
    assert all(map(math.isfinite, losses))


class Stubborn(nn.Linear):
    """A module that takes no hook."""

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no hooks here")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", ["script", "stubborn"])
def test_a_module_that_takes_no_hook_does_not_end_the_run(part: str) -> None:
    torch.manual_seed(0)
    model = Net()
    model.inside = nn.Sequential(torch.jit.script(nn.Linear(4, 4)) if part == "script" else Stubborn(4, 4))
    losses, _ = run(model, steps=6, sampling=OFTEN)
    assert all(map(math.isfinite, losses))


def test_a_forward_pass_without_gradients_is_not_sampled() -> None:
    """An evaluation between forward and backward pass is no part of the step."""
    torch.manual_seed(0)
    model = Net()
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.0), quiet=True)
    for _ in range(4):
        loss = model(torch.ones(2, 4)).mean()
        with torch.no_grad():
            model(torch.full((2, 4), 1e6))
        guard.backward(loss)
        guard.step()
    guard.backward(model(torch.full((2, 4), math.inf)).mean())
    incident = guard.step().incident
    guard.close()
    assert incident is not None
    by_module = [one for one in incident.magnitudes if one.how == "sampled"]
    assert all(number < 1e3 for one in by_module for number in one.by_step.values())
