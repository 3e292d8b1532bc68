"""Trials: what each shows, and that it leaves everything as it found it, bit for bit."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import nantrap
from causes.programs import InspectCase, example, run, run_two_lines
from nantrap.causes import Case
from nantrap.causes.harness import Rerun
from nantrap.causes.replacement import Replacement
from nantrap.causes.trials import Laboratory
from nantrap.incident import Incident, Source, Trial
from nantrap.locate.budget import Budget

FORWARD = """
import random
import numpy as np
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
batches = [torch.rand(6, 4) + 0.1 for _ in range(4)]
batches[3][2, 1] = 0.0

def loss_fn(batch):
    noise = random.random() + float(np.random.rand())
    level = batch.log().sum(-1)
    return (model(batch).square().mean(-1) * level).mean() + noise
"""
"""Fails in its fourth step, in the logarithm; every random stream, a buffer and the optimizer's state take part."""

UPDATE = example("adam_eps_underflow_half")


def state(case: Case) -> dict[str, Any]:
    """Everything a trial could leave behind, as bytes."""
    failed = case.failure
    optimizer = failed.optimizer.state_dict()
    return {
        "parameters": {name: _bits(p) for name, p in failed.parameters.items()},
        "buffers": {name: _bits(b) for name, b in failed.root.named_buffers()},
        "gradients": {name: None if p.grad is None else _bits(p.grad) for name, p in failed.parameters.items()},
        "optimizer": {i: {k: _bits(v) for k, v in entry.items()} for i, entry in optimizer["state"].items()},
        "groups": optimizer["param_groups"],
        "modes": [module.training for module in failed.root.modules()],
        "rng": (_bits(torch.get_rng_state()), random.getstate(), str(np.random.get_state())),
    }


def _bits(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return str(value.dtype), value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def zero_weights(case: Case) -> Callable[[], None]:
    def alter() -> None:
        for parameter in case.failure.parameters.values():
            parameter.zero_()

    return alter


def break_in_the_middle(case: Case) -> Callable[[], None]:
    def alter() -> None:
        zero_weights(case)()
        raise ValueError("out of ideas\nand lines")

    return alter


TRIALS: dict[str, tuple[str, Callable[[Case], Trial], bool | None]] = {
    "again": (FORWARD, lambda case: case.lab.again(), False),
    "fp32": (FORWARD, lambda case: case.lab.single_precision(), False),
    "without_samples": (FORWARD, lambda case: case.lab.without_samples((2,), 6), True),
    "without_other_samples": (FORWARD, lambda case: case.lab.without_samples((0, 1), 6), False),
    "loss_scaled": (FORWARD, lambda case: case.lab.loss_scaled(1 / 1024, "a loss scale of 1"), False),
    "replaced": (FORWARD, lambda case: case.lab.replaced(_line(case), "log"), True),
    "replaced_elsewhere": (FORWARD, lambda case: case.lab.replaced(_line(case), "acos"), None),
    "weights": (FORWARD, lambda case: case.lab.with_weights("zero", "weights of 0", zero_weights(case)), False),
    "raises": (FORWARD, lambda case: case.lab.with_weights("bad", "nothing", break_in_the_middle(case)), None),
    "rate": (FORWARD, lambda case: case.lab.rate("tenth", "a tenth", lambda _step, _group, rate: rate / 10), False),
    "fresh_state": (UPDATE, lambda case: case.lab.fresh_optimizer_state(), False),
    "update_fp32": (UPDATE, lambda case: case.lab.update_in_single_precision(), True),
}


def _line(case: Case) -> Source:
    assert case.location.source is not None
    return case.location.source


@pytest.mark.parametrize("name", TRIALS)
def test_leaves_everything_as_it_was(name: str, inspect_case: InspectCase) -> None:
    program, trial_of, finite = TRIALS[name]

    def look(case: Case) -> None:
        before = state(case)
        trial = trial_of(case)
        assert trial.finite is finite, trial
        after = state(case)
        for part, values in before.items():
            assert after[part] == values, f"{part} changed"

    inspect_case(program, look)


# ---- the laboratory


def test_a_trial_is_run_once_and_numbered(inspect_case: InspectCase) -> None:
    def look(case: Case) -> None:
        first, other = case.lab.again(), case.lab.single_precision()
        assert case.lab.again() is first
        assert case.lab.trials == (first, other)
        assert [trial.number for trial in case.lab.trials] == [1, 2]
        assert (first.name, first.change) == ("again", "nothing: the same step once more")
        assert first.milliseconds > 0

    inspect_case(FORWARD, look)


def test_the_control_of_each_harness_is_recorded(inspect_case: InspectCase) -> None:
    def look(case: Case) -> None:
        assert not case.lab.controls
        trials = [case.lab.again(), case.lab.single_precision(), case.lab.loss_scaled(0.5, "half the loss")]
        assert [trial.harness for trial in trials] == ["none", "step", "step"]
        (control,) = case.lab.controls
        assert (control.number, control.name, control.harness) == (0, "control:step", "step")
        assert (control.change, control.note) == ("nothing: the step as it was", "fails as it did: the trials count")
        assert (control.finite, control.loss) == (False, float("-inf"))
        trial = case.lab.rate("tenth", "a tenth", lambda _step, _group, rate: rate / 10)
        assert trial.harness == "steps"
        assert [one.name for one in case.lab.controls] == ["control:step", "control:steps"]

    inspect_case(FORWARD, look)


def test_a_control_that_does_not_hold_says_why(inspect_case: InspectCase) -> None:
    def look(case: Case) -> None:
        case.failure.batch.fill_(0.5)  # the step is finite when it is run again
        trial = case.lab.single_precision()
        assert trial.note == "not run: the unchanged step is finite when it is run again"
        (control,) = case.lab.controls
        assert control.finite is True
        assert control.note == "no trial counts: the unchanged step is finite when it is run again"

    inspect_case(FORWARD, look)


def test_what_a_trial_raises_is_noted(inspect_case: InspectCase) -> None:
    def look(case: Case) -> None:
        trial = case.lab.with_weights("bad", "nothing", break_in_the_middle(case))
        assert trial.finite is None
        assert trial.note == "ValueError: out of ideas"
        missed = case.lab.replaced(_line(case), "acos")
        assert missed.note == "LookupError: the call was not found at its line"

    inspect_case(FORWARD, look)


@pytest.mark.parametrize(
    ("seconds", "most", "reason"),
    [
        (60.0, 1, "1 trials are the most for one failure"),
        (0.0, 12, "the budget of 0 s was spent"),
    ],
)
def test_budget(seconds: float, most: int, reason: str, inspect_case: InspectCase) -> None:
    def look(case: Case) -> None:
        lab = Laboratory(case, budget=Budget(seconds), most=most)
        calls: list[str] = []

        def experiment() -> Rerun:
            calls.append("ran")
            return Rerun(True, 1.5)

        trials = [lab.run(name, "something", experiment, harness="none") for name in ("first", "second")]
        allowed = most if seconds else 0
        assert len(calls) == allowed
        for trial in trials[allowed:]:
            assert trial.finite is None
            assert trial.note == f"not run: {reason}"
        assert lab.not_tried() == [f"not tried: {', '.join(['something'] * (2 - allowed))}: {reason}"]

    inspect_case(FORWARD, look)


def test_loss_is_reported(inspect_case: InspectCase) -> None:
    def look(case: Case) -> None:
        assert case.lab.again().loss == float("-inf")
        replaced = case.lab.replaced(_line(case), "log")
        assert replaced.loss is not None
        assert np.isfinite(replaced.loss)
        assert replaced.change == f"nantrap.ops.safe_log(x) in line {_line(case).line}"

    inspect_case(FORWARD, look)


def test_the_two_line_form_cannot_be_run_again(inspect_case: InspectCase) -> None:
    def look(case: Case) -> None:
        case.failure = replace(case.failure, forward=None)
        assert case.lab.again().note == (
            "LookupError: the two-line form cannot compute the loss again; guard.attempt can"
        )
        assert case.lab.rate("tenth", "a tenth", lambda _step, _group, rate: rate).note == (
            "LookupError: the two-line form cannot run earlier steps again"
        )

    inspect_case(FORWARD, look)


# ---- single trials


def test_single_precision_widens_every_operation(inspect_case: InspectCase) -> None:
    def look(case: Case) -> None:
        assert case.dtype == "float16"
        assert case.lab.single_precision().finite is True
        assert case.lab.again().finite is False

    inspect_case(example("fp16_forward_overflow"), look)


def test_another_learning_rate_from_an_older_state(inspect_case: InspectCase) -> None:
    def look(case: Case) -> None:
        before = state(case)
        rates: list[tuple[int, float]] = []

        def same(step: int, _group: int, rate: float) -> float:
            rates.append((step, rate))
            return rate

        assert case.lab.rate("same", "nothing", same).finite is False
        assert rates == [(step, 50.0) for step in range(case.failure.step + 1)]
        assert case.lab.rate("tenth", "a tenth", lambda _step, _group, rate: rate / 1000).finite is True
        assert state(case) == before

    inspect_case(example("lr_too_high"), look)


def test_earlier_steps_are_driven_exactly(inspect_case: InspectCase) -> None:
    """With the old learning rates, the steps since the anchor lead to exactly the weights of the failed step."""

    def look(case: Case) -> None:
        wanted = {name: _bits(p) for name, p in case.failure.parameters.items()}
        forward = case.failure.forward
        assert forward is not None
        reached: list[dict[str, Any]] = []

        def watching(batch: Any) -> Tensor:
            reached.append({name: _bits(p) for name, p in case.failure.parameters.items()})
            return forward(batch)

        case.failure = replace(case.failure, forward=watching)
        case.lab.rate("same", "nothing", lambda _step, _group, rate: rate)
        assert reached[-1] == wanted

    inspect_case(FORWARD, look)


def test_a_fresh_state_heals_a_bad_one(inspect_case: InspectCase) -> None:
    def look(case: Case) -> None:
        assert case.lab.fresh_optimizer_state().finite is True

    inspect_case(example("corrupt_optimizer_state"), look)


TWICE = """
import torch

model = torch.nn.Linear(2, 2, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [torch.zeros(3, 2)]

def loss_fn(batch):
    x = model(batch).square()
    first = x.sqrt().sum()
    return first + {other}
"""


@pytest.mark.parametrize(("other", "finite"), [("0.0", True), ("x.sum()", True), ("x.sqrt().sum()", False)])
def test_only_the_guilty_line_is_replaced(other: str, finite: bool, inspect_case: InspectCase) -> None:
    def look(case: Case) -> None:
        file = _line(case).file
        line = Path(file).read_text(encoding="utf-8").splitlines().index("    first = x.sqrt().sum()") + 1
        assert case.lab.replaced(Source(file=file, line=line), "sqrt").finite is finite

    inspect_case(TWICE.format(other=other), look)


def test_hits_are_counted_at_their_line() -> None:
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    line = test_hits_are_counted_at_their_line.__code__.co_firstlineno + 4
    with Replacement([Source(file=__file__, line=line)], "sqrt") as replacement:
        here = x.sqrt()  # this one
        there = x.sqrt()
        torch.sin(x)
    assert len(replacement.hits) == 1
    assert torch.equal(here, there)
    assert torch.autograd.grad(here.sum(), x)[0].tolist() == [0.0, 0.25]
    assert torch.autograd.grad(there.sum(), x)[0].tolist() == [float("inf"), 0.25]


def test_a_checkpointed_block_is_computed_in_float32_again_in_the_backward_pass() -> None:
    """Activation checkpointing runs the forward pass inside the backward pass; its casts must not narrow there."""
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 1)
            nn.init.constant_(self.up.weight, 50.0)
            nn.init.constant_(self.down.weight, 1e-6)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(self.up(x).square())

    block = Block()

    def loss_of(batch: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            result = checkpoint(block, batch, use_reentrant=False)
        assert isinstance(result, Tensor)
        return result.float().mean()

    with nantrap.Guard(block, torch.optim.SGD(block.parameters(), lr=1e-3), quiet=True) as guard:
        incident = guard.attempt(loss_of, torch.ones(2, 8)).incident
    assert incident is not None
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("fp16_forward_overflow", True)


CHECKPOINTED = """
import torch
from torch.utils.checkpoint import checkpoint

model = torch.nn.Linear(2, 2, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [torch.zeros(3, 2, requires_grad=True)]

def block(x):
    squares = model(x).square()
    return {call}

def loss_fn(batch):
    return checkpoint(block, batch, use_reentrant={reentrant}).sum()
"""


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize(
    ("call", "cause"),
    [
        ("squares.sqrt()", "singular_gradient_at_zero"),
        ("squares / squares.sum()", "division_by_zero"),
        ("torch.where(squares > 0, squares.log(), squares)", "where_unselected_branch"),
    ],
)
@pytest.mark.parametrize("form", [run, run_two_lines])
def test_a_call_in_a_checkpointed_block_is_replaced_wherever_it_runs(
    form: Callable[[str, Path], Incident | None], call: str, cause: str, reentrant: bool, tmp_path: Path
) -> None:
    incident = form(CHECKPOINTED.format(call=call, reentrant=reentrant), tmp_path)
    assert incident is not None
    assert incident.source is not None
    best = incident.causes[0]
    assert (best.slug, best.proven) == (cause, True)
    assert best.fix is not None
    assert best.fix.verified
    assert incident.source.text == f"    return {call}"


def test_a_call_inside_the_backward_pass_is_replaced_too() -> None:
    """A mode is off while `loss.backward()` runs: it has to be put in force again inside."""
    seen: list[Tensor] = []

    class Root(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clamp(min=0)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            seen.append(ctx.saved_tensors[0].log())  # this line
            return gradients[0]

    x = torch.tensor([0.0, 1.0], requires_grad=True)
    line = Root.backward.__code__.co_firstlineno + 2
    for run_backward in (torch.Tensor.backward, torch.autograd.backward, lambda loss: torch.autograd.grad(loss, x)):
        with Replacement([Source(file=__file__, line=line)], "log") as replacement:
            run_backward(Root.apply(x).sum())
        assert len(replacement.hits) == 1
        assert seen[-1].isfinite().all()
    Root.apply(x).sum().backward()
    assert seen[-1].tolist() == [-math.inf, 0.0]


def test_trials_do_not_advance_a_schedule_that_a_hook_of_the_optimizer_steps() -> None:
    """Updates are made again with other learning rates; the program's hooks after an update see none of them."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(6, 40), nn.SiLU(), nn.Linear(40, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e6, total_steps=12, cycle_momentum=False)
    made: list[float] = []

    def after_update(*_: object) -> None:
        made.append(optimizer.param_groups[0]["lr"])
        schedule.step()

    optimizer.register_step_post_hook(after_update)
    guard = nantrap.Guard(model, optimizer, quiet=True)
    x, y = torch.randn(32, 6), torch.randn(32, 2)
    outcomes = [guard.attempt(lambda batch: (model(batch[0]) - batch[1]).square().mean(), (x, y)) for _ in range(8)]
    incident = next(outcome.incident for outcome in outcomes if outcome.incident is not None)
    assert any(trial.harness == "steps" and trial.finite for trial in incident.trials)
    assert len(made) == sum(outcome.applied for outcome in outcomes) == schedule.last_epoch
