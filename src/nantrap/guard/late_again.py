"""A step that was launched, and turned out to be bad one step later: run again, and refused as it would have been then.

The device has skipped it, so weights, buffers, averages and loss scale are those from before it. What belongs to the
present step (its gradients, its buffers, the random streams) is put aside meanwhile.

    put aside   what the present step has made so far
    again       the failed step once more, for its gradients: with its batch and function in `attempt`, else by the
                source of its loss (`twoline`). Where that cannot be done, the values that were read have to do
    refuse      as in `run_step`: contain, diagnose, act, record
    restore     the present step goes on, unless the run went back to an older state
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from nantrap import finite
from nantrap.guard.collect import Collector
from nantrap.guard.diagnosis.describe import Observation, budget_of, failure_of
from nantrap.guard.driver import Driver
from nantrap.guard.judge import Decision, Kind, Verdict
from nantrap.guard.progress import Progress
from nantrap.guard.refusal import observe_step
from nantrap.guard.session import Session
from nantrap.guard.state.certify import LARGEST_NORM
from nantrap.guard.step import Scalars, decide_together, refuse_bad
from nantrap.guard.torch_private import give_unscaling, take_unscaling
from nantrap.guard.window import Loss, Micro, Outcome, Reading, Window, as_loss
from nantrap.incident import Action, Finding
from nantrap.incident.wording import NO_MEMORY, is_out_of_memory
from nantrap.locate import Failure, RngState
from nantrap.locate.replay.replay import autocast_like, called_again
from nantrap.locate.twoline.rerun import Again, compute_again

if TYPE_CHECKING:
    from nantrap.guard.late import Schedule
    from nantrap.guard.sync import Arrival
    from nantrap.locate.replay.program import ProgramState


@dataclass(frozen=True, slots=True)
class Launched:
    """A step that was launched and not read yet, with what is needed to run it again. All of it by reference.

    Attributes:
        window: its micro-batches, with their batches and random streams.
        scalars: what the host must know of it, on the device.
        arrival: these values.
        bad: 1 where the device has skipped the step, else 0.
        spares_scale: 1 where that was not due to the loss scale; `None` without a scale.
        together: whether several ranks have joined their flags; the last three values are these.
        beyond: by what the norm was multiplied, so that it overflows where no update is proven finite.
        rates: the learning rates.
        scale: the loss scale before the step.
        program: the program's own generators and attributes before it.
        milliseconds: how long it took to launch.
        position: where the loop was, with the number of the step.
        schedules: the schedules before they advanced.
        counters: what the averages count on the host, with its values before the step.
    """

    window: Window
    scalars: Scalars
    arrival: Arrival
    bad: Tensor
    spares_scale: Tensor | None
    together: bool
    beyond: float
    rates: tuple[float, ...]
    scale: Any
    program: ProgramState | None
    milliseconds: float
    position: Progress
    schedules: list[Schedule] = field(default_factory=list)
    counters: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @contextlib.contextmanager
    def at_its_position(self, progress: Progress) -> Iterator[None]:
        """Epoch, batch and samples of the loop are those of the step."""
        present = replace(progress)
        _assign(progress, self.position, step=progress.step)
        try:
            yield
        finally:
            _assign(progress, present, step=progress.step)


def refuse_launched(
    session: Session, driver: Driver, collector: Collector, launched: Launched, reading: Reading
) -> Outcome:
    """The end of a step that the device has skipped."""
    protected, progress = session.protected, session.progress
    micro = launched.window.micros[0]
    began = micro.rng if micro.root_call is None else micro.root_call.rng
    present = RngState.capture() if began is None else began.now()
    gradients = [parameter.grad for parameter in protected.members.parameters]
    unscaled = take_unscaling(driver.scaling.scaler, protected.optimizer) if driver.scaling.enabled else None
    buffers_as_now, attempting, window = protected.ledger.hold(), collector.attempting, collector.window
    advanced, scale = [schedule.now() for schedule in launched.schedules], driver.scaling.capture()
    collector.attempting, collector.window = True, None
    driver.scaling.restore(launched.scale)
    for counter, before in launched.counters:
        counter.copy_(before)
    for schedule in reversed(launched.schedules):
        schedule.restore()
    try:
        with launched.at_its_position(progress), protected.of_earlier_step(launched.program):
            outcome = _refuse(session, driver, collector, launched, reading)
    finally:
        collector.attempting, collector.window = attempting, window
        if driver.scaling.enabled:
            give_unscaling(driver.scaling.scaler, protected.optimizer, unscaled)
    if outcome.action is Action.ROLLBACK:
        return outcome
    for parameter, gradient in zip(protected.members.parameters, gradients, strict=True):
        parameter.grad = gradient
    if outcome.incident is None and protected.has_buffers:  # a scaler's search: what the forward pass wrote stays
        protected.ledger.capture()
        _write_again(session, window)
    else:
        buffers_as_now()
    present.restore()
    if outcome.incident is None:  # the loss scale was too large: what the script's own loop does was done already
        driver.scaling.restore(scale)
        for schedule in advanced:
            schedule.restore()
    elif driver.still_scaled and scale is not None:  # by the scale that the present step was made with
        _scale_by([g for g in gradients if g is not None], driver.scaling.scalar(), scale)
    return outcome


def _scale_by(gradients: list[Tensor], now: Tensor | None, captured: Any) -> None:
    """Gradients that carry a loss scale carry the present one instead: mostly twice as much, which is exact."""
    then = captured.get("_scale")
    if now is not None and then is not None and gradients and not torch.equal(now, then.reshape(())):
        torch._foreach_mul_(gradients, now / then.reshape(()))


def _refuse(session: Session, driver: Driver, collector: Collector, launched: Launched, reading: Reading) -> Outcome:
    """With everything as it was before the failed step: find out whether it is the loss scale, else refuse it."""
    again = _again(session, driver, launched, reading)  # its gradients say whether the loss scale was too large
    decision = decide_together(session, driver, again.window, reading, careful=False, spike=False)
    if decision.kind is Kind.PROBE:
        launched.window.probes_scale = True
        session.scaling.probes_in_a_row += 1
        at = (launched.position, launched.milliseconds)
        return session.recorder.end(launched.window, reading, Action.SKIP, launched=at)
    session.progress.step = launched.position.step
    session.recorder.tally.attempted -= 1
    if again.is_too_large:
        reading = reading._replace(norm=again.norm)
        decision = replace(decision, spike=True)
    observation = _observed(session, driver, again, reading, decision)
    return refuse_bad(session, driver, again.window, reading, observation, decision, words=again.words)


def _observed(session: Session, driver: Driver, again: RunAgain, reading: Reading, decision: Decision) -> Observation:
    """What is known of the step: by its gradients where it was run again, else by what was read of it."""
    if again.is_too_large:
        note = (
            f"the gradient norm {again.norm:.4g} is above {LARGEST_NORM:.0e}, up to which the update is proven finite"
        )
        observation = observe_step(session, driver, again.window, reading, decision, [])
        return replace(
            observation, findings=(Finding("spike", "gradient norm", "backward", value=again.norm, note=note),)
        )
    if any(parameter.grad is not None for parameter in session.protected.members.parameters):
        return observe_step(session, driver, again.window, reading, decision, [])
    bare = observe_step(session, driver, again.window, reading._replace(norm=0.0), decision, [])
    more = []
    if not (bare.findings or math.isfinite(reading.norm)):
        note = "the norm of all gradients was read, and the gradients were not kept"
        more.append(Finding("gradient", "of the step", "backward", value=reading.norm, note=note))
    return replace(bare, norm=reading.norm, findings=(*bare.findings, *more))


# ---- the failed step once more


class RunAgain(NamedTuple):
    """The failed step, as far as it could be run again.

    Attributes:
        window: run again, with its gradients in the parameters; or as it was.
        words: why it could not be run again, where that is to be said.
        norm: its gradient norm.
    """

    window: Window
    words: str = ""
    norm: float = math.nan

    @property
    def is_too_large(self) -> bool:
        """Whether it is finite, and too large for an update that nothing could undo."""
        return math.isfinite(self.norm) and self.norm > LARGEST_NORM


def _again(session: Session, driver: Driver, launched: Launched, reading: Reading) -> RunAgain:
    """Run the step again. Leaves its gradients in the parameters, averaged over the ranks where the failed step's were,
    and what it wrote in the buffers."""
    protected, ranks = session.protected, session.ranks
    protected.members.clear_gradients()
    protected.ledger.restore()
    words = ""
    try:
        with session.alone.running():
            window = _by_function(driver, launched.window) or _by_source(session, driver, launched, reading)
            if window is None:
                _model_alone(session, launched.window)
    except Exception as error:  # the step has failed already: what can be said of it must not depend on this
        why = NO_MEMORY if is_out_of_memory(error) else f"{type(error).__name__}: {error}"
        window, words = None, f"the step could not be run again for its diagnosis: {why}"
        protected.members.clear_gradients()
        protected.ledger.restore()
    if launched.together and ranks.talking:
        _average_gradients(session)
    if window is None:
        return RunAgain(launched.window, words)
    if driver.scaling.enabled:
        driver.scaling.scaler.unscale_(protected.optimizer)
    norm = finite.gradient_norm(protected.members.gradients())
    largest = protected.ledger.largest() if protected.has_buffers else None
    values = finite.read(Scalars.of(session, driver, window, norm, largest).judged)
    for micro, then in zip(window.micros, launched.window.micros, strict=True):
        micro.values = then.values
    again = RunAgain(window, norm=values[0])
    was_bad_here = not math.isfinite(reading.norm) or reading.buffers_bad or reading.guilty is not None
    if not was_bad_here or not all(map(math.isfinite, values)) or again.is_too_large:
        return again
    protected.members.clear_gradients()
    protected.ledger.restore()
    return RunAgain(launched.window, "the step was finite when it was run again: it depends on something not restored")


def _average_gradients(session: Session) -> None:
    """What the ranks found by themselves, averaged as in the failed step. Each rank calls it, whatever it found."""
    parameters = [p for p in session.protected.members.parameters if p.requires_grad]
    if not session.ranks.any_of_all(any(parameter.grad is not None for parameter in parameters)):
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    session.ranks.average([parameter.grad for parameter in parameters if parameter.grad is not None])


def _by_function(driver: Driver, failed: Window) -> Window | None:
    """Each micro-batch of an attempt by its own function; `None` in the two-line form."""
    if any(micro.forward is None or micro.rng is None for micro in failed.micros):
        return None
    fresh = Window(time.perf_counter(), failed.whole)
    for micro in failed.micros:
        assert micro.rng is not None
        micro.rng.restore()
        loss = as_loss(micro.forward(micro.batch))
        _backward(driver, loss.total, micro.factor)
        fresh.micros.append(replace(micro, loss=loss, values=None))
    return fresh


def _by_source(session: Session, driver: Driver, launched: Launched, reading: Reading) -> Window | None:
    """The loss computed again from the source lines of the two-line form; `None` where they do not give it again."""
    found: list[tuple[Micro, Again]] = []
    for micro in launched.window.micros:
        with micro.seen_from_there():
            again = compute_again(_failure(session, micro, reading), budget_of(session))
        if again is None:
            return None
        found.append((micro, again))
    micros = []
    for micro, again in found:
        again.rng.restore()
        total = again.forward(again.batch)
        _backward(driver, total, micro.factor)
        micros.append(replace(micro, loss=Loss(total, micro.loss.terms), values=None))
    return replace(launched.window, micros=micros)


def _write_again(session: Session, window: Window | None) -> None:
    """What the forward passes of the present step write into buffers, after those of the step before it."""
    with contextlib.suppress(Exception), session.alone.running():  # a model that cannot be called again keeps the rest
        for micro in [] if window is None else window.micros:
            if micro.forward is not None and micro.rng is not None:
                micro.rng.restore()
                micro.forward(micro.batch)
        if window is not None:
            _model_alone(session, window)


def _model_alone(session: Session, window: Window) -> None:
    """The calls of the model, for what they write into buffers; the loss and its gradients are not there again."""
    for micro in window.micros:
        if micro.root_call is None:
            continue
        failure = _failure(session, micro, Reading())
        for call in micro.root_call.chain():
            call.rng.restore()
            with autocast_like(call.autocast), call.as_made(failure.root):
                called_again(call, failure)(*call.args, **call.kwargs)


def _failure(session: Session, micro: Micro, reading: Reading) -> Failure:
    """The step as far as its values tell."""
    return failure_of(session, Observation(micro, micro.values or [], reading.norm, (), {}, Verdict()))


def _backward(driver: Driver, total: Tensor, factor: float) -> None:
    """Runs the backward pass as `Collector.add` does."""
    total = total * factor if factor != 1.0 else total
    (driver.scaling.scaler.scale(total) if driver.scaling.enabled else total).backward()


def _assign(progress: Progress, values: Progress, *, step: int) -> None:
    """Overwrite where the loop is, without its count of steps."""
    for each in fields(values):
        setattr(progress, each.name, getattr(values, each.name))
    progress.step = step
