"""The steps before the failed one, run again from an older state. Everything is restored afterwards.

`guard.attempt` keeps the batches since its anchors. In the other forms only the failed step can be computed again: its
batch then stands in for those of the updates before it (`OlderState.stands_in`), as it was or with the inputs that the
model had in earlier steps (`Laboratory.varied`). The steps run as they were (`own_rate`), with one thing changed (a
trial), or with one operation measured (`repeated_magnitudes`).
Nothing of this runs before a failure.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from nantrap.causes.case import RECENT
from nantrap.causes.harness import Rerun, clip
from nantrap.finite import any_nonfinite
from nantrap.incident import Magnitudes
from nantrap.locate.batch import tensors_of, with_tensor
from nantrap.locate.budget import Budget
from nantrap.locate.failure import Beside, Part
from nantrap.locate.nodes import leaves_below
from nantrap.locate.replay.replay import fails_alike, forward_and_backward
from nantrap.locate.torch_private import DispatchMode, is_in_backward, without_post_hooks
from nantrap.locate.trace import Op
from nantrap.locate.trace.operations import op_name
from nantrap.locate.trace.storage import extremes, tensors_in
from nantrap.locate.wrapping import layers_of, state_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case

_SHOWN = 32
"""Of how many of the last steps a magnitude is shown: as many as one line of a terminal or a small chart can hold."""
_MOST_STAND_INS = 32
"""How many of the last updates are made again with one batch: as many as lie between two anchors."""
_MORE_STAND_INS = 8
"""Updates that are made in addition: another batch may need a few more to fail."""
RateOf = Callable[[int, int, float], float]
"""The learning rate of a step in a trial: `rate_of(step, group, rate)`, with the number of the parameter group."""


def own_rate(_step: int, _group: int, rate: float) -> float:
    """The learning rate that the step had: nothing is changed."""
    return rate


@dataclass(frozen=True, slots=True)
class OlderState:
    """A state from before the failed step, and the updates since then.

    Attributes:
        step: the first step after it.
        restore: restores it: parameters, optimizer state and, of an anchor, all else.
        value_of: the copy of a parameter.
        attempts: the steps since then.
        stands_in: the batch of the failed step is used in all of them, since theirs are not kept.
    """

    step: int
    restore: Callable[[], None]
    value_of: Callable[[Any], Any]
    attempts: list[Any]
    stands_in: bool = False


def older_state(case: Case, *, this_batch: bool = False) -> OlderState | None:
    """The older state from which the updates since then can be made again; `None` if none is kept.

    Args:
        case: the failure.
        this_batch: the batch of the failed step stands in for the others, also where they are kept.
    """
    failed, anchors = case.failure, case.run.anchors
    found = None if this_batch else drivable(anchors, failed.step)
    if found is not None:
        anchor, attempts = found
        return OlderState(anchor.step, lambda: anchors.restore(anchor), anchor.snapshot.value_of, attempts)
    applied = [record.step for record in case.run.history.applied() if record.step < failed.step]
    older = [] if anchors is None else [a for a in anchors.candidates() if applied and a.step <= applied[-1]]
    if not older:
        return None
    oldest = older[-1]
    steps = [step for step in applied if step >= oldest.step]
    batches = itertools.cycle([failed.batch] if this_batch or not case.lab.varied else with_earlier_inputs(case))
    attempts = [
        SimpleNamespace(step=step, forward=failed.forward, batches=(next(batches),), rng=failed.rng, applied=True)
        for step in (*steps[-_MOST_STAND_INS:], *steps[-1:] * _MORE_STAND_INS)
    ]
    return OlderState(steps[0], lambda: anchors.restore(oldest), oldest.snapshot.value_of, attempts, stands_in=True)


def with_earlier_inputs(case: Case) -> list[Any]:
    """The batch of the failed step, and the same with the inputs that the model had in earlier steps in place of its
    own; the batch alone where they are not kept, or are no part of it."""
    call = case.failure.root_call
    batches = [case.failure.batch]
    if call is None:
        return batches
    inputs = call.inputs()
    held = {id(tensor) for _, tensor in tensors_of(case.failure.batch)}
    if not inputs or not held.issuperset(map(id, inputs)):
        return batches
    for earlier in call.before:
        if [tensor.shape for tensor in earlier] == [tensor.shape for tensor in inputs]:
            batch = case.failure.batch
            for own, other in zip(inputs, earlier, strict=True):
                batch = with_tensor(batch, own, other)
            batches.append(batch)
    return batches


def moved(case: Case) -> float:
    """How far the updates since an older state moved what is trained, in units of its own size then; 0 if unknown."""
    older = older_state(case)
    trained = [parameter for parameter in case.failure.parameters.values() if parameter.requires_grad]
    return 0.0 if older is None else distance(trained, older.value_of)


def distance(trained: Iterable[Tensor], value_of: Callable[[Tensor], Tensor | None]) -> float:
    """How far these weights are from what they were, in units of their own size then; 0 if unknown.

    Args:
        trained: the weights.
        value_of: the copy of one of them.
    """
    pairs: list[tuple[Tensor, Any]] = [(parameter.detach(), value_of(parameter)) for parameter in trained]
    if any(hasattr(now, "to_local") or then is None or then.shape != now.shape for now, then in pairs):
        return 0.0
    size = math.hypot(*(float(then.double().norm()) for _, then in pairs))
    moved = math.hypot(*(float((now.double() - then.double()).norm()) for now, then in pairs))
    return moved / size if size else 0.0


def beside(case: Case) -> list[Beside]:
    """The other networks of the training that the loss of the step reads, each with those of its weights alone."""
    loss = case.failure.loss
    read = {id(leaf) for leaf in leaves_below(loss)} if loss is not None and case.run.beside else set()
    found = [one._replace(parameters=tuple(p for p in one.parameters if id(p) in read)) for one in case.run.beside]
    return [one for one in found if one.parameters]


def drift(case: Case) -> float | None:
    """How many times larger the loss of an earlier batch is with the weights of now; `None` if that is not known.

    A loss may rise since its batches are noisy or get harder. Only a rise on the same batch, with the same random
    numbers, shows that the weights got worse.
    """
    failed = case.failure
    found = drivable(case.run.anchors, failed.step)
    if found is None or not failed.repeatable or (failed.crew is not None and not failed.averaged):
        return None
    recorded = {record.step: record.loss for record in case.run.history.applied()}
    earlier = next((a for a in found[1] if a.applied and recorded.get(a.step)), None)
    if earlier is None:
        return None
    try:
        with failed.rewound():
            earlier.rng.restore(beside=False)
            losses = [float(earlier.forward(batch).detach()) for batch in earlier.batches]
    except Exception:  # an earlier batch that cannot be run again shows nothing
        return None
    now = sum(losses) / len(losses)
    return abs(now) / abs(recorded[earlier.step]) if math.isfinite(now) else math.inf


def older_weights(case: Case) -> tuple[int, Callable[[], None]] | None:
    """The step of a state that is older than all recent steps, and what writes its weights; `None` if none is kept.

    The other networks that the loss reads are taken back to their oldest states with it.
    """
    recent = case.run.history.applied()[-RECENT:]
    anchors = [] if case.run.anchors is None or not recent else case.run.anchors.candidates()
    anchor = next((anchor for anchor in reversed(anchors) if anchor.step <= recent[0].step), None)
    others = beside(case)
    if anchor is not None:
        step, value_of = anchor.step, anchor.snapshot.value_of
    elif others and not recent:  # no update of its own: its weights are those it began with
        step, value_of = case.failure.step, torch.Tensor.detach
    else:
        return None
    trained = [parameter for parameter in case.failure.parameters.values() if parameter.requires_grad]
    pairs: list[tuple[Tensor, Any]] = [(parameter, value_of(parameter)) for parameter in trained]
    pairs += [(parameter, one.value_of(parameter)) for one in others for parameter in one.parameters]
    if any(value is None or value.shape != parameter.shape for parameter, value in pairs):
        return None

    def write() -> None:
        for parameter, value in pairs:
            parameter.copy_(value)

    return step, write


def driven(
    case: Case,
    rate_of: RateOf,
    alter: Callable[[Any], Any] | None = None,
    *,
    measuring: OperationMeter | None = None,
    this_batch: bool = False,
) -> Rerun:
    """The steps from an older state up to the failed one, which is run last. Everything is restored.

    Args:
        case: the failure.
        rate_of: gives the learning rate of each step.
        alter: gives the batch that is used instead of another.
        measuring: measures one operation in each pass.
        this_batch: the batch of the failed step stands in for the others.
    """
    failed = case.failure
    if not failed.repeatable or failed.rng is None:
        raise LookupError("the two-line form cannot run earlier steps again")
    if failed.averaged and failed.crew is None:
        raise LookupError("earlier steps averaged the gradients of all ranks, which one alone does not get again")
    older = older_state(case, this_batch=this_batch)
    if older is None:
        raise LookupError("no older state is kept from which the steps could be run again")
    recorded = {record.step: record.lr for record in case.run.history}
    groups = failed.optimizer.param_groups
    rates = {}
    for step in (*(attempt.step for attempt in older.attempts), failed.step):
        known = recorded.get(step, ())
        before = [known[i] if i < len(known) else float(group["lr"]) for i, group in enumerate(groups)]
        rates[step] = tuple(rate_of(step, group, rate) for group, rate in enumerate(before))
    if failed.crew is None:
        part = drive(case, older.step, rates, alter=alter, measuring=measuring, this_batch=this_batch)
        return Rerun(*part)
    if alter is not None or older.stands_in:
        raise LookupError("the batches of the other ranks are not changed")
    return Rerun(*failed.crew.steps(older.step, rates))


def drive(
    case: Case,
    since: int,
    rates: Mapping[int, tuple[float, ...]],
    *,
    alter: Callable[[Any], Any] | None = None,
    average: Callable[[], None] | None = None,
    measuring: OperationMeter | None = None,
    this_batch: bool = False,
) -> Part:
    """Make the steps since an older state again, and the failed one.

    Args:
        case: the failure.
        since: the step of the older state.
        rates: the learning rates of each step, by parameter group.
        alter: gives the batch that is used instead of another.
        average: averages the gradients over the ranks, where all of them do this.
        measuring: measures one operation in each pass.
        this_batch: the batch of the failed step stands in for the others.
    """
    anchors, failed = case.run.anchors, case.failure
    older = older_state(case, this_batch=this_batch)
    if older is None or older.step != since or failed.rng is None or (average is not None and older.stands_in):
        raise LookupError(f"the state of step {since:,} is not kept, or not every step since then")
    change = alter or (lambda batch: batch)
    gradients = {name: parameter.grad for name, parameter in failed.parameters.items()}
    streams, present = failed.rng.now(), anchors.capture(failed.step)
    alone = failed.rewound() if average is None else without_post_hooks(layers_of(failed.optimizer))
    try:
        with alone:
            older.restore()
            bad = False
            for attempt in older.attempts:
                if attempt.step == failed.step:
                    break
                if attempt.applied:
                    _drive_one(case, attempt, rates[attempt.step], change, average, measuring)
                bad = bad or any_nonfinite(failed.parameters.values())
                if bad and average is None:  # several ranks make all steps: each sees only its own part of the weights
                    return Part(False)
            with contextlib.nullcontext() if measuring is None else measuring.forward_pass():
                part = forward_and_backward(failed, change(failed.batch), stop_early=average is None)
            if failed.symptom == "optimizer" and part.finite:
                _update(case, rates[failed.step], average, None)
                state = [*failed.parameters.values(), *state_tensors(failed.optimizer)]
                part = part._replace(finite=not any_nonfinite(state))
            return Part(False) if bad else part
    finally:
        anchors.restore(present)
        for name, parameter in failed.parameters.items():
            parameter.grad = gradients[name]
        streams.restore()


def _drive_one(
    case: Case,
    attempt: Any,
    rates: tuple[float, ...],
    change: Callable[[Any], Any],
    average: Callable[[], None] | None,
    measuring: OperationMeter | None,
) -> None:
    """One earlier step, as the plain loop would make it."""
    attempt.rng.restore(beside=False)
    for parameter in case.failure.parameters.values():
        parameter.grad = None
    for batch in attempt.batches:
        with contextlib.nullcontext() if measuring is None else measuring.forward_pass():
            loss = attempt.forward(change(batch)) / len(attempt.batches)
        with contextlib.nullcontext() if measuring is None else measuring.backward_pass():
            case.failure.backward(loss)
    _update(case, rates, average, attempt)


def _update(case: Case, rates: tuple[float, ...], average: Callable[[], None] | None, attempt: Any | None) -> None:
    """Average, clip and step, with the gradients that are there; of an earlier step, or of the failed one."""
    if average is not None:
        average()
    clip(case)
    for rate, group in zip(rates, case.failure.optimizer.param_groups, strict=True):
        group["lr"] = rate
    if attempt is None:
        case.failure.update()
    else:
        case.failure.update(attempt.forward, attempt.batches[-1])


def drivable(anchors: Any, step: int) -> tuple[Any, list[Any]] | None:
    """The oldest anchor from which every step up to this one can be run again."""
    if anchors is None:
        return None
    attempts = [attempt for attempt in anchors.attempts if attempt.step < step]
    for anchor in reversed(anchors.candidates()):
        since = [attempt for attempt in attempts if attempt.step >= anchor.step]
        if len(since) == step - anchor.step and len(since) >= 1:
            return anchor, since
    return None


def repeated_magnitudes(case: Case, *, budget: Budget) -> Magnitudes | None:
    """The magnitude of the guilty operation's result by step; `None` where the steps cannot be run again in time.

    What is measured counts only if the last of the steps, the failed one, fails as it did.

    Args:
        case: the failed step with its place; its trials are over.
        budget: how long this may take.
    """
    failed, replay = case.failure, case.location.replay
    op = replay.op if replay is not None else None
    if op is None or op.phase not in ("forward", "backward") or not failed.repeatable or failed.crew is not None:
        return None
    known = drivable(case.run.anchors, failed.step)
    if failed.averaged or known is None:
        return None
    steps = [attempt.step for attempt in known[1] if attempt.applied for _ in attempt.batches]
    if not budget.allows(len(steps) + 1):
        return None
    assert replay is not None
    meter = OperationMeter(op, _occurrence(replay.trace.ops, op), budget)
    try:
        result = driven(case, own_rate, measuring=meter)
    except Exception:  # a history is worth less than the incident: what cannot be repeated is not shown
        return None
    if result.finite or result.loss is None or not fails_alike(failed, result.loss, result.bad):
        return None
    if len(meter.passes) != len(steps) + 1 or meter.passes[-1] is not None:  # the last one is not finite
        return None
    largest = _largest_by_step(steps, meter.passes[:-1])
    if not largest:
        return None
    found = {str(step): largest[step] for step in sorted(largest)[-_SHOWN:]}
    words = f"the result of {op.name}" + (f" in {op.module}" if op.module else "")
    return Magnitudes(words, op.dtype, "repeated", found)


def _largest_by_step(steps: list[int], numbers: list[float | None]) -> dict[int, float]:
    """The largest magnitude of each step; a step has one number for each of its micro-batches."""
    largest: dict[int, float] = {}
    for step, number in zip(steps, numbers, strict=True):
        if number is not None:
            largest[step] = max(number, largest.get(step, 0.0))
    return largest


def _occurrence(ops: list[Op], op: Op) -> int:
    """Counts how many operations of the same name ran before this one in its phase."""
    return sum(1 for other in ops[: op.index] if other.name == op.name and other.phase == op.phase)


class OperationMeter(DispatchMode):
    """Measures one operation of each pass: the same name, at the same place in the order of those.

    `passes` has the largest magnitude of its result in each pass, `None` where it did not run or is not finite.
    """

    def __init__(self, op: Op, occurrence: int, budget: Budget) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.passes: list[float | None] = []
        self._name = op.name
        self._backward = op.phase == "backward"
        self._occurrence = occurrence
        self._count = 0
        self._budget = budget

    def forward_pass(self) -> contextlib.AbstractContextManager[Any]:
        """Begins a pass. An operation of the backward pass is measured in a graph that was made in this mode, too."""
        if self._budget.spent:
            raise TimeoutError("the steps take too long")
        self.passes.append(None)
        self._count = 0
        return self

    def backward_pass(self) -> contextlib.AbstractContextManager[Any]:
        """The mode for a backward pass, which costs nothing where the operation belongs to the forward pass."""
        return self if self._backward else contextlib.nullcontext()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, and measure its result if it is the one."""
        result = func(*args, **(kwargs or {}))
        if op_name(func) == self._name and is_in_backward() == self._backward:
            if self._count == self._occurrence:
                tensors = list(tensors_in(args[:1] if result is None else result))
                self.passes[-1] = max((a for t in tensors if (a := extremes(t)[2]) is not None), default=None)
            self._count += 1
        return result
