"""Steps that are traced while they run, after an incident whose cause was not proven."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as modes_running

import nantrap
from nantrap.errors import UsageError
from nantrap.guard.armed import LiveTrace
from nantrap.incident import Incident
from nantrap.locate.trace import Registered


class Seen:
    """A loss function with a side effect, so that it is not computed again from its source."""

    losses = 0


def weighted(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, counts = batch
    Seen.losses += 1
    error = model(x).squeeze(-1).square()
    weight = 1.0 / counts  # without a gradient: the graph of the loss does not show who made the Inf
    return (weight * error).mean()


def train(
    policy: nantrap.Policy,
    *,
    steps: int = 6,
    bad: tuple[int, ...] = (1, 4),
    loss_of: Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor] = weighted,
) -> tuple[list[Incident], nn.Module]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    found = []
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), policy=policy, quiet=True) as guard:
        for step in range(steps):
            batch = (torch.randn(4, 3), torch.ones(4))
            if step in bad:
                batch[1][2] = 0.0
            guard.backward(loss_of(model, batch))
            incident = guard.step().incident
            found += [incident] if incident is not None else []
    return found, model


def test_the_second_failure_is_reported_in_full() -> None:
    (first, second), _ = train(nantrap.Policy())
    assert first.causes[0].slug == "unknown"
    assert any(note.startswith("armed: the next 100 steps are traced while they run") for note in first.notes)
    assert (second.op, second.module) == ("aten.reciprocal", "loss")
    assert second.source is not None
    assert second.source.text.strip().startswith("weight = 1.0 / counts")
    assert (second.causes[0].slug, second.causes[0].proven) == ("division_by_zero", True)
    trial = second.trials[0]
    assert (trial.name, trial.finite) == ("replaced:div", True), "the recorded operations, with one of them replaced"
    assert second.causes[0].fix is not None
    assert second.causes[0].fix.verified
    assert not any(note.startswith("armed: the next") for note in second.notes)


def test_tracing_ends_when_it_has_cost_as_much_as_a_diagnosis() -> None:
    """By a clock that goes on by a second whenever it is read: a traced step takes one, and ten are to be spent."""
    seconds = itertools.count()
    policy = nantrap.Policy(diagnosis=nantrap.Diagnosis(seconds=10.0, clock=lambda: float(next(seconds))))
    (first, second), _ = train(policy, steps=30, bad=(1, 28))
    assert any("traced while they run, until that has cost 10 s" in note for note in first.notes)
    assert second.op != "aten.reciprocal", "its step was not traced any more"
    (first, second), _ = train(nantrap.Policy(diagnosis=nantrap.Diagnosis(clock=lambda: 0.0)), steps=30, bad=(1, 28))
    assert second.op == "aten.reciprocal"


def distilled(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The model teaches itself: its own output, without a gradient, is a part of the step."""
    x, counts = batch
    Seen.losses += 1
    out = model(x)
    with torch.no_grad():
        goal = model(x.flip(0)) / counts[:, None]
    return (out - goal).square().mean()


def test_a_forward_pass_without_gradients_is_a_part_of_the_step() -> None:
    (_, second), _ = train(nantrap.Policy(), loss_of=distilled)
    assert second.op == "aten.div"
    assert second.source is not None
    assert second.source.text.strip() == "goal = model(x.flip(0)) / counts[:, None]"
    assert second.causes[0].slug == "division_by_zero"


def test_always_reports_the_first_failure_after_a_first_step() -> None:
    (first,), _ = train(nantrap.Policy(diagnosis=nantrap.Diagnosis(armed="always")), bad=(2,))
    assert (first.op, first.causes[0].slug) == ("aten.reciprocal", "division_by_zero")


def test_it_can_be_turned_off() -> None:
    found, _ = train(nantrap.Policy(diagnosis=nantrap.Diagnosis(armed="off")))
    assert [incident.causes[0].slug for incident in found] == ["unknown", "unknown"]
    assert not any(note.startswith("armed") for incident in found for note in incident.notes)


def test_it_ends_after_its_steps() -> None:
    (_, second), _ = train(nantrap.Policy(diagnosis=nantrap.Diagnosis(armed="after", armed_steps=1)))
    assert second.causes[0].slug == "unknown"


def test_a_model_that_was_compiled_elsewhere_in_the_process_does_not_matter() -> None:
    torch.compile(torch.nn.Linear(2, 2), backend="eager")(torch.ones(1, 2))
    (first,), _ = train(nantrap.Policy(diagnosis=nantrap.Diagnosis(armed="always")), bad=(2,))
    assert first.op == "aten.reciprocal"


def test_traced_steps_are_bit_identical() -> None:
    _, plain = train(nantrap.Policy(diagnosis=nantrap.Diagnosis(armed="off")), bad=())
    _, traced = train(nantrap.Policy(diagnosis=nantrap.Diagnosis(armed="always")), bad=())
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), traced.parameters(), strict=True))


def test_no_mode_is_left_behind() -> None:
    train(nantrap.Policy(diagnosis=nantrap.Diagnosis(armed="always")), bad=())
    assert modes_running() == []


class Passing(TorchDispatchMode):
    """A mode of the user: it changes nothing, and calls a function once, in the middle of an operation."""

    def __init__(self, once: Callable[[], object] = lambda: None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._once: Callable[[], object] | None = once

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        once, self._once = self._once, None
        if once is not None:
            once()
        return func(*args, **(kwargs or {}))


def traced_guard() -> tuple[nn.Module, nantrap.Guard]:
    """A guard that traces each of its steps, after a first one."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = nantrap.Guard(
        model, optimizer, policy=nantrap.Policy(diagnosis=nantrap.Diagnosis(armed="always")), quiet=True
    )
    guard.backward(model(torch.ones(2, 3)).mean())
    guard.step()
    return model, guard


def test_a_trace_of_a_guard_that_is_dropped_ends_and_leaves_later_modes_running() -> None:
    held = dict([traced_guard()])
    (model,) = held
    model(torch.ones(2, 3))  # the step does not run to its end
    with Passing() as users:
        held.clear()
        del model
        gc.collect()
        assert modes_running() == [users]
    assert modes_running() == []


def test_a_trace_that_is_dropped_while_it_handles_an_operation_ends_with_the_next_step() -> None:
    held = dict([traced_guard()])

    def drop() -> None:
        held.clear()
        gc.collect()

    output = None
    with Passing(once=lambda: None) as users:
        (model,) = held
        output = model(torch.ones(2, 3))
        del model
        users._once = drop
        output = output + 1
        assert not held
    model, guard = traced_guard()
    guard.backward(model(torch.ones(2, 3)).mean())
    guard.step()
    guard.close()
    assert modes_running() == []


def test_a_trace_that_is_ended_while_it_lets_an_operation_pass_is_not_left_running() -> None:
    """The garbage collector may end it while torch has taken it off; Python 3.14 collects at other moments."""
    model, ended = nn.Linear(3, 1), list[bool]()
    trace = LiveTrace(model, Registered(dict(model.named_parameters()), {}))
    with Passing(once=lambda: ended.append(trace.end())) as users:
        trace.__enter__()
        trace.aside = True
        torch.ones(2)
        assert ended == [False]
        torch.ones(2)
        assert modes_running() == [users]
    assert modes_running() == []


def test_two_guards_whose_steps_overlap_end_their_own_traces() -> None:
    (first, guard), (second, other) = traced_guard(), traced_guard()
    bad = torch.ones(2, 3)
    bad[1, 2] = float("nan")
    loss, second_loss = first(torch.ones(2, 3)).mean(), second(bad).mean()
    guard.backward(loss)
    assert guard.step().applied
    other.backward(second_loss)
    incident = other.step().incident
    assert incident is not None
    assert incident.causes[0].slug == "bad_input_data"
    assert len(modes_running()) == 2, "the loop body of each is traced"
    guard.close()
    other.close()
    assert modes_running() == []


def test_a_mode_around_the_call_of_the_model_alone_ends() -> None:
    model, guard = traced_guard()
    with Passing():
        output = model(torch.ones(2, 3))
    guard.backward(output.mean())
    guard.step()
    guard.close()
    assert modes_running() == []


def lengths(x: Tensor, step: int) -> list[float]:
    """A reward function of the program's own: every third step one reward is bad."""
    return [float("inf") if step % 3 == 2 and row == 1 else float(row) for row in range(len(x))]


def advantages_of(model: nn.Module, x: Tensor, step: int, kind: str) -> Tensor:
    """What the loop computes before the model is called in the step."""
    with torch.no_grad():
        old = model(x).log_softmax(-1)[:, 0]
    reward_fn = lengths
    if kind == "number":
        output = reward_fn(x, step)
        rewards = torch.tensor(output)
        return (rewards - rewards.mean()) / 4
    counts = torch.ones(len(x))
    counts[2] = 0.0 if step % 3 == 2 else 1.0
    weights = old.exp() / counts
    return weights - weights.amin()


def rolled_out(kind: str, form: str, policy: nantrap.Policy, steps: int = 6) -> tuple[list[Incident], nn.Module]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    found = []
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), policy=policy, quiet=True) as guard:
        for step in range(steps):
            x = torch.randn(4, 3)
            batch = {"x": x, "advantages": advantages_of(model, x, step, kind)}
            if form == "attempt":
                outcome = guard.attempt(lambda each: surrogate(model, each), batch)
            else:
                guard.backward(surrogate(model, batch))
                outcome = guard.step()
            found += [outcome.incident] if outcome.incident is not None else []
    return found, model


def surrogate(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    Seen.losses += 1
    return -(model(batch["x"]).log_softmax(-1)[:, 0] * batch["advantages"]).mean()


@pytest.mark.parametrize("form", ["two lines", "attempt"])
def test_a_number_that_the_loop_takes_over_is_named(form: str) -> None:
    """What is passed to `attempt` is the batch, whose bad values are a proven cause: steps are traced if asked for."""
    policy = nantrap.Policy(diagnosis=nantrap.Diagnosis(armed="always" if form == "attempt" else "after"))
    _, second = rolled_out("number", form, policy)[0]
    assert second.causes[0].slug == "bad_input_data"
    assert second.causes[0].summary == "output[1] is non-finite where the loop takes it over"
    assert second.causes[0].fix is not None
    assert "or leave such values out of the step" in second.causes[0].fix.words
    (way,) = second.provenance
    assert way.startswith("output[1] (+Inf), assigned at test_armed.py:")
    assert ", from reward_fn (lengths, test_armed.py:" in way


@pytest.mark.parametrize("form", ["two lines", "attempt"])
def test_an_operation_of_the_loop_is_proven(form: str) -> None:
    policy = nantrap.Policy(diagnosis=nantrap.Diagnosis(armed="always" if form == "attempt" else "after"))
    _, second = rolled_out("operation", form, policy)[0]
    assert (second.causes[0].slug, second.op) == ("division_by_zero", "aten.div")
    assert second.source is not None
    assert second.source.text.strip() == "weights = old.exp() / counts"
    assert second.causes[0].proven


def test_a_traced_loop_is_bit_identical() -> None:
    models = [
        rolled_out("none", "two lines", nantrap.Policy(diagnosis=nantrap.Diagnosis(armed=armed)), steps=2)[1]
        for armed in ("off", "always")
    ]
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))


def test_a_bad_number_that_the_loop_leaves_out_is_not_named() -> None:
    """Beside a number that is masked, the loss itself fails."""
    torch.manual_seed(0)
    model, found = nn.Linear(3, 1), []
    policy = nantrap.Policy(diagnosis=nantrap.Diagnosis(armed="always"))
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), policy=policy, quiet=True) as guard:
        for step in range(3):
            labels = torch.tensor([1.0, float("nan"), 0.5])
            labels = torch.where(labels.isnan(), 0.0, labels)
            Seen.losses += 1
            error = (model(torch.ones(3, 3)).squeeze(-1) - labels).square()
            guard.backward((error / (0.0 if step == 2 else 1.0)).mean())
            found.append(guard.step().incident)
    assert found[2] is not None
    assert found[2].provenance == ()
    assert found[2].causes[0].slug == "division_by_zero"
    assert "or leave such values out of the step" not in str(found[2])


def test_a_trace_ends_by_itself_when_the_loop_has_ended() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    policy = nantrap.Policy(diagnosis=nantrap.Diagnosis(armed="always"))
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), policy=policy, quiet=True)

    def make_steps() -> None:
        for _ in range(2):
            guard.backward(model(torch.ones(4, 3)).mean())
            guard.step()

    debugger = sys.gettrace()  # also what measures coverage
    make_steps()
    assert len(modes_running()) == 1
    total = torch.zeros(())
    for _ in range(10_100):  # a long evaluation, or whatever comes after the training
        total = total + 1.0
    assert modes_running() == [] or debugger is not None
    assert sys.gettrace() is debugger
    make_steps()
    guard.close()
    assert modes_running() == []
    assert guard.tally.applied == 4


@pytest.mark.parametrize("wrong", [{"armed": "sometimes"}, {"armed_steps": 0}])
def test_wrong_use(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="armed"):
        nantrap.Diagnosis(**wrong)


@pytest.mark.parametrize("kind", ["export", "make_fx", "fake"])
def test_a_program_that_makes_a_graph_of_a_model_is_left_alone(kind: str) -> None:
    """What torch computes then has no values: reading them ended the program, without a Python error in `export`."""

    def graph() -> None:
        model, x = nn.Linear(3, 1), torch.randn(2, 3)
        if kind == "export":
            torch.export.export(model, (x,), strict=False)
        elif kind == "make_fx":
            make_fx(model)(x)
        else:
            with FakeTensorMode(allow_non_fake_inputs=True):
                model(torch.randn(2, 3))

    def exports(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        graph()
        return weighted(model, batch)

    found, _ = train(nantrap.Policy(diagnosis=nantrap.Diagnosis(armed="always")), loss_of=exports)
    assert [(incident.step, incident.op) for incident in found] == [(1, "aten.reciprocal"), (4, "aten.reciprocal")]
