"""No healthy step waits for the device, and a bad one is known as well as if it had been read at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import nantrap
from device.simulated import Counts, counted
from guard import test_dropped_losses as dropped
from guard.loops import FORMS, INF, NAN, Net, Run, assert_same_state, batches, make_run, poison, state_of, train_plain
from nantrap import Policy
from nantrap.guard.sync import Arrival

FIRST = 8
"""The first steps of a run are read at once."""
UNHURRIED = nantrap.Diagnosis(seconds=600, clock=lambda: 0.0)
"""No time passes by this clock: a busy machine must not change what is tried."""


class Steady(Net):
    """Without dropout: a run that leaves a batch out draws the same numbers as one that never met it."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Identity()


def moved(batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor.to("sim") for tensor in batch)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


PARTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scaler": {"scaler": lambda: torch.amp.GradScaler("sim", init_scale=8.0, growth_interval=5)},
    "autocast": {
        "scaler": lambda: torch.amp.GradScaler("sim", init_scale=2.0**10),
        "autocast": torch.float16,
    },
    "schedule": {"scheduler": lambda o: OneCycleLR(o, max_lr=0.1, total_steps=100)},
    "average": {"ema": lambda m: AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)},
    "accumulation": {"micro": 2},
}


SOME_PARTS = [name if name in ("plain", "scaler") else pytest.param(name, marks=pytest.mark.slow) for name in PARTS]
"""Where another form goes through all parts quickly."""


def run_on_device(optimizer: Callable[[Any], torch.optim.Optimizer] = adamw, **parts: Any) -> Run[Any]:
    data = [moved(batch) for batch in batches(2 * (FIRST + 6) if parts.get("micro") == 2 else FIRST + 6)]
    return make_run(optimizer, model=lambda: Steady().to("sim"), data=data, **parts)


def in_two_parts(run: Run[Any]) -> tuple[list[Any], list[Any]]:
    windows = run.windows()
    return windows[: FIRST + 2], windows[FIRST + 2 :]


def plain_counts(run: Run[Any]) -> Counts:
    """What the loop does without a guard, apart from its own reading of the loss."""
    first, rest = in_two_parts(run)
    train_plain(run, first)
    with counted() as seen:
        train_plain(run, rest)
    return seen[0]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("parts", PARTS)
def test_a_healthy_step_waits_for_nothing_and_is_bit_identical(form: str, parts: str) -> None:
    plain, run = run_on_device(**PARTS[parts]), run_on_device(**PARTS[parts])
    expected = plain_counts(plain)
    with run.guard() as guard:
        first, rest = in_two_parts(run)
        FORMS[form](run, guard, first)
        with counted() as seen:
            FORMS[form](run, guard, rest)
    own = {name: n - expected.waits.get(name, 0) for name, n in seen[0].waits.items() if name != "item"}
    assert not any(own.values()), own
    assert "item" not in seen[0].waits
    assert_same_state(state_of(plain), state_of(run))


def test_no_launch_is_added_per_parameter() -> None:
    added = []
    for layers in (2, 40):

        def deep(layers: int = layers) -> nn.Module:
            return nn.Sequential(nn.Linear(6, 3), *(nn.Linear(3, 3) for _ in range(layers))).to("sim")

        data = [moved(batch) for batch in batches(FIRST + 6)]
        plain, run = (make_run(adamw, model=deep, data=data) for _ in range(2))
        expected = plain_counts(plain).kernels
        with run.guard() as guard:
            first, rest = in_two_parts(run)
            FORMS["attempt"](run, guard, first)
            with counted() as seen:
                FORMS["attempt"](run, guard, rest)
        added.append((seen[0].kernels - expected) / len(rest))
    few, many = added
    assert few <= 8
    assert many - few <= 1  # a list of 82 tensors may need a second kernel


@pytest.mark.parametrize("parts", PARTS)
def test_a_bad_step_never_happened(parts: str) -> None:
    a_bad_step_never_happened("attempt", parts)


@pytest.mark.parametrize("parts", SOME_PARTS)
def test_a_bad_step_in_two_lines_never_happened(parts: str) -> None:
    a_bad_step_never_happened("two_line", parts)


def a_bad_step_never_happened(form: str, parts: str) -> None:
    run, clean = run_on_device(**PARTS[parts]), run_on_device(**PARTS[parts])
    guard = run.guard(policy=Policy(diagnose="locate"))
    first, rest = in_two_parts(run)
    FORMS[form](run, guard, first)
    bad = (poison(run.batches[0], NAN), *rest[0][1:])
    FORMS[form](run, guard, [bad])
    assert guard.last_incident is None  # the host does not know yet
    FORMS[form](run, guard, [rest[0]])
    outcome = run.outcomes[-1]
    assert outcome.incident is not None
    assert outcome.incident.step == outcome.step - 1
    train_plain(clean, [*first, rest[0]])
    assert_same_state(state_of(clean), state_of(run))
    guard.close()


def told(incident: Any) -> Any:
    """Everything that an incident says of a failure."""
    causes = [(cause.slug, cause.proven, cause.summary, cause.fix) for cause in incident.causes]
    place = incident.phase, incident.module, incident.op, incident.node, incident.samples
    told = place, causes, incident.findings, len(incident.trials), incident.refuted, incident.notes, incident.loss
    return [repr(each) for each in told]


def log_of_zero(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1]) + 1e-3 * torch.log(batch[0].square().sum(1)).mean()


def root_of_zero(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]) * batch[0][:, :1]).square().sum(1).sqrt().mean()


def nothing_to_average(model: nn.Module, batch: Any) -> Tensor:
    chosen = torch.where(batch[0][:, 0] == 0, -100, 0)
    return nn.functional.cross_entropy(model(batch[0]), chosen)


def two_lines(run: Run[Any], guard: nantrap.Guard, windows: Any) -> None:
    """A loop as people write it: the loss can be computed again from these lines."""
    model, compute = run.model, run.loss
    for (batch,) in windows:
        loss = compute(model, batch)
        guard.backward(loss)
        guard.step()


LOSSES = [log_of_zero, root_of_zero, nothing_to_average]
SOME_LOSSES = [LOSSES[0], *(pytest.param(loss, marks=pytest.mark.slow) for loss in LOSSES[1:])]
LOOPS = {"attempt": FORMS["attempt"], "two_line": two_lines}


@pytest.mark.parametrize("form", LOOPS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_bad_step_is_diagnosed_as_if_it_had_been_read_at_once(form: str, loss: Any) -> None:
    """Incidents of both ways are the same: place, causes, proofs, findings, trials and notes."""
    incidents = []
    for sync in ("step", "auto"):
        run = run_on_device(loss=loss)
        with run.guard(policy=Policy(sync=sync, diagnosis=UNHURRIED)) as guard:
            first, rest = in_two_parts(run)
            empty = (torch.zeros_like(run.batches[0][0]), run.batches[0][1])
            LOOPS[form](run, guard, [*first, (empty,), rest[0]])
        assert guard.tally.incidents == 1
        incidents.append(guard.last_incident)
    at_once, late = incidents
    assert at_once is not None
    assert at_once.causes[0].proven
    assert told(late) == told(at_once)


def two_lines_for_each(run: Run[Any], guard: nantrap.Guard, windows: Any) -> None:
    """Gradients that are accumulated, as people write it."""
    model, compute = run.model, run.loss
    for window in windows:
        for batch in window:
            loss = compute(model, batch) / len(window)
            guard.backward(loss)
        guard.step()


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("loss", LOSSES[:2])
def test_a_micro_batch_of_a_step_that_is_read_late(loss: Any, place: int) -> None:
    """The loop has gone on to its next batches when the bad micro-batch is known."""
    run = run_on_device(loss=loss, micro=2)
    first, rest = in_two_parts(run)
    bad = list(rest[0])
    bad[place] = (torch.zeros_like(bad[place][0]), bad[place][1])
    with run.guard(policy=Policy(diagnosis=UNHURRIED)) as guard:
        two_lines_for_each(run, guard, [*first, bad, *rest[1:]])
    incident = guard.last_incident
    assert incident is not None
    assert incident.step == len(first)
    assert incident.causes[0].proven
    assert guard.tally.applied == len(first) + len(rest) - 1


class Logarithm(nn.Module):
    """NaN for a sample that is negative in its first feature."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * torch.log(x[:, :1])


def call_each(model: nn.Module, inputs: list[Tensor]) -> None:
    with torch.no_grad():
        for each in inputs:
            model(each)


def clean_each(model: nn.Module, inputs: list[Tensor]) -> None:
    """The program expects NaN, and replaces it."""
    with torch.no_grad():
        for each in inputs:
            given = model(each)
            given.nan_to_num()


@pytest.mark.parametrize("evaluate", [call_each, clean_each])
def test_a_bad_evaluation(
    evaluate: Callable[[nn.Module, list[Tensor]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """After the first calls sixteen are read together; after a bad value each is read, and the next is explained."""
    model = Logarithm().to("sim")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    good = [torch.rand(5, 4).add(0.1).to("sim") for _ in range(16)]
    bad = [each.clone() for each in good]
    bad[3][2, 0] = -1.0
    expected = evaluate is call_each
    with nantrap.Guard(model, optimizer, policy=Policy(diagnosis=UNHURRIED)) as guard:
        evaluate(model, good[:8])
        with counted() as seen:
            evaluate(model, bad)
        assert seen[0].blocking_reads == 1
        assert not guard.tally.evaluations
        evaluate(model, bad)
    assert dict(guard.tally.evaluations) == ({"domain_error": 1} if expected else {})
    line = "evaluation: one of the calls 9 to 24 of the model gave a value that is not finite; the next 64 calls are"
    assert (line in capsys.readouterr().err) is expected


@pytest.mark.parametrize("program", [dropped.in_a_function, dropped.a_sum_in_a_function])
def test_a_loss_that_the_loop_drops_inside_a_function(program: Callable[[dropped.Loop], None]) -> None:
    with torch.device("sim"):
        loop = dropped.Loop()
        assert loop.guard is not None
        with loop.guard as guard:
            program(loop)
    assert (guard.tally.applied, guard.tally.given_up) == (30 - loop.dropped, loop.dropped)
    assert set(guard.tally.causes) == {"bad_input_data"}


def test_steps_that_must_be_known_are_read_at_once() -> None:
    """After a bad step each step is read before its update, until one is applied."""
    run = run_on_device()
    guard = run.guard(policy=Policy(max_consecutive_skips=10))
    first, rest = in_two_parts(run)
    bad = [(poison(run.batches[0], INF),)] * 3
    FORMS["attempt"](run, guard, [*first, *bad])
    assert guard.tally.incidents == 3
    assert [outcome.applied for outcome in run.outcomes[-3:]] == [True, False, False]  # the first was not read yet
    FORMS["attempt"](run, guard, rest)
    guard.close()
    assert guard.tally.applied == len(first) + len(rest)
    assert run.outcomes[-1].loss_step == run.outcomes[-1].step - 1


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
        lambda m: torch.optim.AdamW(m.parameters(), lr=0.1),
    ],
)
def test_an_optimizer_that_cannot_skip_on_the_device_is_read_at_once(optimizer: Any) -> None:
    run = run_on_device(optimizer)
    guard = run.guard()
    first, rest = in_two_parts(run)
    FORMS["attempt"](run, guard, first)
    with counted() as seen:
        FORMS["attempt"](run, guard, rest)
    assert seen[0].blocking_reads == len(rest)
    assert run.outcomes[-1].loss_step == run.outcomes[-1].step
    guard.close()


def test_values_that_are_read_too_early_are_wrong_here() -> None:
    """What the tests above rely on: without its wait, a late read would see garbage."""
    sent = Arrival.of(torch.ones(3, device="sim"))
    assert sent.values.isnan().all()
    assert sent.read() == [1.0, 1.0, 1.0]


def test_the_last_step_is_judged_before_a_save(tmp_path: Any) -> None:
    run = run_on_device()
    guard = run.guard(store=nantrap.CheckpointStore(tmp_path))
    first, _ = in_two_parts(run)
    FORMS["attempt"](run, guard, [*first, (poison(run.batches[0], NAN),)])
    guard.save()
    assert guard.last_incident is not None
    assert guard.last_incident.step == len(first)
    guard.close()
