"""One step from detection to record. The order is written here, in `run_step`, and nowhere else.

    detect    read         everything the host needs to know of the step, in a single transfer
    judge     decide       apply, probe, observe or refuse; all ranks the same
    apply     make_update  clip, update, and undo it if it created non-finite values
    contain   contain      this step never happened
    diagnose  diagnose     the incident so far: where and why
    act       act          skip, roll back or stop
    record    refuse       the incident is final: bundle, journal line, message, tally

The steps of a healthy run are in this file, in order; what is done with a bad one is in `refusal`. The two other ways
to make a step, late reads and closures, have their own files and use the same session.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nantrap import finite
from nantrap.guard.diagnosis.describe import Observation, dropped_terms, rank_divergence
from nantrap.guard.diagnosis.diagnose import diagnose, finite_at_scale_one
from nantrap.guard.driver import Driver
from nantrap.guard.dropping import drop_bad_heads, judge_micro_batch, left_out_in_words, merge
from nantrap.guard.judge import APPLY, APPLY_CAREFULLY, Decision, Flags, Kind, Verdict, judge
from nantrap.guard.refusal import bad_reading, contain, observe_step, put_back_buffers, refuse, refuse_dropped
from nantrap.guard.session import Session
from nantrap.guard.state.members import current_rates
from nantrap.guard.watching.ranges import outside_in_words
from nantrap.guard.window import NOTHING, Outcome, Reading, Window
from nantrap.incident import Action, Finding


def run_step(session: Session, driver: Driver, window: Window) -> Outcome:
    """Judge the step as a whole and do what follows from it."""
    if session.armed.on:
        session.armed.stop()
    if (window.judged or window.dropped) and not gather(session, driver, window):
        return refuse_dropped(session, driver, window)
    try:
        reading = read(session, driver, window)
        if not math.isfinite(reading.norm) and window.micros[0].given is not None:
            reading = without_bad_heads(session, driver, window, reading)
        decision = decide(session, driver, window, reading)
        if decision.verdict.signalled:
            reading = without_signal(session, driver, reading)
        if decision.kind is Kind.APPLY:
            if reading.buffers_bad:
                put_back_buffers(session, window, reading)
            undone, verdict = make_update(session, driver, window, reading, careful=decision.verdict.careful)
            if verdict is None:
                return accept(session, driver, window, reading)
            decision = judge(verdict, session.policy)
        elif decision.kind is Kind.PROBE:
            return probe(session, driver, window, reading)
        else:
            undone = []
        observation = observe_step(session, driver, window, reading, decision, undone)
    except BaseException:  # Ctrl+C before the step was judged
        session.protected.restore_interrupted()
        raise
    if decision.kind is Kind.OBSERVE:
        return apply_anyway(session, driver, window, reading, observation)
    overflow = decision.verdict.only_gradients and is_overflow(driver, reading)
    return refuse_bad(session, driver, window, reading, observation, decision, overflow=overflow)


def refuse_bad(
    session: Session,
    driver: Driver,
    window: Window,
    reading: Reading,
    observation: Observation,
    decision: Decision,
    *,
    overflow: bool = False,
    words: str = "",
) -> Outcome:
    """Contain the step, find out where and why it failed, act, and record it.

    Args:
        session: of the run.
        driver: who makes the update.
        window: the step.
        reading: what was read of it.
        observation: what was seen of it.
        decision: what is done with it.
        overflow: the script's scaler lowers its scale, as it would alone.
        words: said after the incident's own notes.
    """
    contain(session, driver, overflow=overflow)
    try:
        diagnosed = diagnose(session, observation)
    except BaseException:  # Ctrl+C, wherever it came: a replay may have been restoring
        session.protected.restore()
        raise
    if session.ranges is not None and session.ranges.findings and not decision.spike:
        diagnosed = diagnosed.noting(outside_in_words(session.ranges.findings))
    if words:
        diagnosed = diagnosed.noting(words)
    return refuse(session, driver, window, bad_reading(window, reading, observation), diagnosed, decision)


# ---- detect


def gather(session: Session, driver: Driver, window: Window) -> bool:
    """Join the gradients of micro-batches that were kept apart. Returns whether any of them is left."""
    if window.separate:
        if window.has_unjudged:
            judge_micro_batch(session, driver, window)
        if not window.good:
            return False
        merge(session, window)
        return True
    return bool(window.micros)


def read(session: Session, driver: Driver, window: Window) -> Reading:
    """Everything the host needs to know of this step, in a single transfer."""
    protected = session.protected
    norm = driver.norm()
    groups = protected.optimizer.param_groups
    rates = (float(groups[0]["lr"]),) if len(groups) == 1 else current_rates(protected.optimizer)
    buffers_judged = window.judged and window.separate and not window.buffers_unjudged
    largest = protected.ledger.largest(buffers=not buffers_judged) if protected.has_buffers else None
    micros = window.micros
    loss_is_read = len(micros) == 1 and micros[0].values is not None and not window.judged
    nothing_else = session.watch is None and not driver.scaling.enabled
    fits_in_one_tensor = largest is None or (largest.dtype is norm.dtype and largest.device == norm.device)
    if not (loss_is_read and nothing_else and fits_in_one_tensor):
        return _read_all(session, driver, window, norm, rates, largest)
    # the usual case: only the norm is left to read and, with buffers, whether they are finite
    if largest is None:
        value, buffers_bad = finite.value_of(norm), False
    else:
        value, largest_value = finite.values_of(torch.stack((norm, largest)))
        buffers_bad = not math.isfinite(largest_value) and protected.ledger.any_bad()
    if not math.isfinite(value):
        value = confirmed_norm(session, driver, value)
    micro = micros[0]
    values = micro.values
    if not values:
        return Reading(value, math.nan, NOTHING, rates, NOTHING, None, buffers_bad)
    loss = values[0]
    if len(values) == 1 and math.isfinite(loss):
        return Reading(value, loss * micro.factor, NOTHING, rates, NOTHING, None, buffers_bad)
    guilty = micro if micro.bad else None
    return Reading(value, loss * micro.factor, micro.terms(values), rates, NOTHING, None, buffers_bad, guilty)


def _read_all(
    session: Session, driver: Driver, window: Window, norm: Tensor, rates: tuple[float, ...], largest: Tensor | None
) -> Reading:
    """Reads the norm with watched values, written buffers, a loss scale, and losses that were not read yet."""
    scalars = Scalars.of(session, driver, window, norm, largest)
    values = finite.read(scalars.tensors())
    if not math.isfinite(values[0]):
        values[0] = confirmed_norm(session, driver, values[0])
    reading = scalars.reading(session, driver, window, values, rates)
    return reading._replace(buffers_bad=reading.buffers_bad and session.protected.ledger.any_bad())


class Scalars(NamedTuple):
    """What the host must know of a step, still on the device.

    Attributes:
        judged: what must be finite, on one device: the gradient norm, the loss and the terms of each micro-batch that
            was not read yet, and the largest value of the written buffers.
        has_buffers: whether the last one is that of buffers.
        watched: the watched values.
        scale: the loss scale, or `None`.
    """

    judged: list[Tensor]
    has_buffers: bool
    watched: list[Tensor]
    scale: Tensor | None

    @classmethod
    def of(cls, session: Session, driver: Driver, window: Window, norm: Tensor, buffers: Tensor | None) -> Scalars:
        """Collects the scalars of a step whose gradients are there."""
        judged = [norm]
        for micro in window.micros:
            if micro.values is None:
                judged += micro.loss.scalars()
        if buffers is not None:
            judged.append(buffers.to(norm.device))
        watched = session.watch.scalars() if session.watch is not None else []
        return cls(judged, buffers is not None, watched, driver.scaling.scalar())

    def tensors(self) -> list[Tensor]:
        """All of them, in the order in which `reading` takes their values."""
        return [*self.judged, *self.watched, *([] if self.scale is None else [self.scale])]

    def reading(
        self, session: Session, driver: Driver, window: Window, values: Sequence[float], rates: tuple[float, ...]
    ) -> Reading:
        """The reading of the step, from their values."""
        left = iter(values)
        norm = next(left)
        for micro in window.micros:
            if micro.values is None:
                micro.values = [next(left) for _ in micro.loss.scalars()]
        buffers_bad = self.has_buffers and not math.isfinite(next(left))
        watched = [next(left) for _ in self.watched]
        named = session.watch.named(watched) if session.watch is not None else NOTHING
        if self.scale is not None:
            driver.scaling.note(next(left))
        guilty = None if window.separate else next((micro for micro in window.micros if micro.bad), None)
        if not window.separate:
            for micro in window.micros:
                window.count(micro)
        scale = driver.scaling.value()
        return Reading(norm, window.loss, window.terms or NOTHING, rates, named, scale, buffers_bad, guilty)


def without_bad_heads(session: Session, driver: Driver, window: Window, reading: Reading) -> Reading:
    """With `bad_terms="drop"` and a bad gradient: the reading without the terms that make it bad."""
    micro = window.micros[0]
    if len(window.micros) > 1 or window.judged or reading.buffers_bad:
        return reading
    if not drop_bad_heads(session, driver, window, micro, reading.norm):
        return reading
    assert micro.values is not None
    norm = finite.read([driver.norm()])[0]
    return reading._replace(norm=norm, loss=micro.values[0] * micro.factor, terms=micro.terms(micro.values))


def confirmed_norm(session: Session, driver: Driver, norm: float) -> float:
    """The norm in float64 where nothing clips by it.

    A sum of squares that overflows harms nothing while every gradient is finite.
    """
    if driver.norm_is_used():
        return norm
    exact = finite.exact_norm(session.protected.members.gradients())
    return exact if math.isfinite(exact) else norm


# ---- judge


def decide(session: Session, driver: Driver, window: Window, reading: Reading) -> Decision:
    """What is done with the step. One exchange with the other ranks; none in a single process."""
    limit = driver.max_grad_norm
    norm, spikes = reading.norm, session.spikes
    careful = session.protected.needs_care(norm if limit is None or norm < limit else limit)
    bad = not math.isfinite(norm) or reading.guilty is not None or reading.buffers_bad
    spike = False
    if spikes is not None and (reading.loss > spikes.loss_limit or norm > spikes.norm_limit) and not bad:
        spike = is_skipped_spike(session, reading)
    if session.ranges is not None and _is_skipped_batch(session):
        spike = True
    if not (bad or spike or session.ranks.together):
        return APPLY_CAREFULLY if careful else APPLY
    return decide_together(session, driver, window, reading, careful=careful, spike=spike)


def decide_together(
    session: Session, driver: Driver, window: Window, reading: Reading, *, careful: bool, spike: bool
) -> Decision:
    """The decision of all ranks on a step that is not simply healthy on one of them, or that they always share."""
    ranks = session.ranks
    norm_bad = not math.isfinite(reading.norm)
    local_bad = reading.guilty is not None or reading.buffers_bad
    signalled = False
    if ranks.silent:
        if norm_bad:
            ranks.wait_for_all()
            signalled = ranks.averaged.signalled
        elif ranks.averaged.lasts():  # what only this rank knows must not decide: all of them hold the same gradients
            return APPLY_CAREFULLY if careful else APPLY
        else:
            careful = True
    # several ranks ask each other about the scale, so all of them do: also one that has another reason
    overflow = norm_bad and (ranks.together or not local_bad)
    probing = overflow and driver.scaling.is_probing() and _is_the_scale(session, window) and not local_bad
    symptom = harmful = norm_bad and not probing
    if signalled:
        harmful = not math.isfinite(without_signal(session, driver, reading).norm)
    flags = Flags(
        origin=local_bad,
        symptom=symptom,
        harmful=harmful or reading.buffers_bad,
        careful=careful,
        probing=probing,
        spike=spike,
        stop=_cannot_go_back(session),
        signalled=signalled,
    )
    decision = judge(ranks.agree(flags), session.policy)
    ranks.careful = decision.verdict.careful
    if decision.kind is Kind.APPLY and not decision.verdict.careful and ranks.talking:
        ranks.averaged.begin()
    if decision.spike and _is_new_level(session):
        session.recorder.say(f"step {session.progress.step:,}: the spike lasts; the new level is accepted")
        return Decision(Kind.APPLY, decision.verdict)
    return decision


def without_signal(session: Session, driver: Driver, reading: Reading) -> Reading:
    """The reading without the NaN by which a rank informs the others of something other than gradients."""
    session.ranks.averaged.take_back()
    norm = finite.value_of(finite.gradient_norm(session.protected.members.gradients()))
    return reading._replace(norm=norm if math.isfinite(norm) else confirmed_norm(session, driver, norm))


def is_skipped_spike(session: Session, reading: Reading) -> bool:
    """A finite value far outside its range: reported here, or a reason to skip."""
    assert session.spikes is not None
    found = session.spikes.find(reading.loss, reading.norm)
    if found:
        session.sampler.watch_closely(session.progress.step)
    if found and session.policy.spikes.action == "skip" and session.policy.on_incident == "skip":
        session.recorder.tally.spikes += len(found)
        return True
    for spike in found:
        session.recorder.say_spike(spike.note)
    return False


def _is_new_level(session: Session) -> bool:
    """Whether as many spikes in a row were skipped as the policy skips: then loss or gradients have a new level."""
    outside = session.ranges is not None and session.ranges.findings
    return not outside and session.spikes is not None and not session.spikes.skips_one_more()


def _is_skipped_batch(session: Session) -> bool:
    """Whether the batch lies far outside its usual range and the policy skips such steps."""
    ranges, policy = session.ranges, session.policy
    assert ranges is not None
    return (
        bool(ranges.findings) and policy.batches.unusual == "skip" and policy.on_incident == "skip" and ranges.may_skip
    )


def _is_the_scale(session: Session, window: Window) -> bool:
    """Whether the overflow is due to the loss scale: at a scale of 1 the same micro-batches are finite.

    `attempt` tries it, each rank with its own part and without the others. Probes are rare, so running the step once
    more costs a healthy run almost nothing. Elsewhere the gradients show it: an overflow leaves Inf somewhere. NaN
    without any Inf, where the scale was fine until now, has another reason; if it happens again in the next step, the
    scaler lowers its scale as usual. A script's own scaler does so at once (`is_overflow`).
    """
    tried = [micro for micro in window.micros if micro.forward is not None]
    if tried and session.alone.possible:
        with session.protected.ledger.kept():
            return all(finite_at_scale_one(session, micro) for micro in tried)
    if session.scaling.probes_in_a_row or session.ladder.in_a_row or not session.recorder.tally.applied:
        return True
    gradients = session.protected.members.gradients()  # none of a step that was read late and could not be run again
    return session.ranks.any_of_all(not gradients or finite.any_infinite(gradients))


def is_overflow(driver: Driver, reading: Reading) -> bool:
    """Whether a script's own scaler would lower its scale at a refused step: it acts as it would alone."""
    return not driver.owns_gradients and driver.scaling.is_probing() and not math.isfinite(reading.norm)


def _cannot_go_back(session: Session) -> bool:
    """Whether this rank has no older state although a rollback would be next. All ranks are asked beforehand."""
    at_the_end = session.ranks.together and session.ladder.is_at_the_end(session.progress.step)
    return at_the_end and bool(session.recovery.no_way_back())


# ---- apply


def make_update(
    session: Session, driver: Driver, window: Window, reading: Reading, *, careful: bool
) -> tuple[list[Finding], Verdict | None]:
    """Clip and step. If that made anything non-finite on any rank, it is undone on all of them.

    Returns:
        What it made non-finite here, and the verdict of the ranks; `None` if the update is good.
    """
    if driver.max_grad_norm is not None:
        driver.clip(reading.norm)
    protected = session.protected
    undone = protected.update(driver.take_update, careful=careful)
    if not careful:
        return undone, None
    bad = bool(undone)
    ranks, verdict = session.ranks, Verdict()
    silent = ranks.together and ranks.silent
    if silent and bad:
        ranks.wait_for_all()
    if bad or not silent:
        own = bad and protected.is_own(undone)
        verdict = ranks.agree(Flags(origin=own, symptom=bad, harmful=bad, stop=_cannot_go_back(session)))
    if verdict.bad:
        if not undone:
            protected.undo()
            undone = [Finding("parameter", f"rank {verdict.origin_rank}", "optimizer", note="on another rank")]
        return undone, verdict
    protected.release()
    for found in protected.newly_bad_before(session.progress.step):
        session.recorder.say(
            f"step {session.progress.step:,}: {found.kind.replace('_', ' ')} {found.name} was non-finite before this "
            "step and takes no part in it; it is not changed"
        )
    if ranks.together and not silent:
        compare_ranks(session, window)
    return undone, None


def compare_ranks(session: Session, window: Window) -> None:
    """Averaged gradients are useless if the ranks hold different weights. Checked after careful steps, reported
    once."""
    ranks = session.ranks
    if ranks.differ:
        return
    sums = ranks.checksums(session.protected.members.parameters, session.progress.step)
    if len(set(sums)) > 1:
        ranks.differ = True
        diagnosed = rank_divergence(session, sums)
        window.diagnosed.append((diagnosed, "the step was applied; the parameters still differ between ranks"))


def accept(session: Session, driver: Driver, window: Window, reading: Reading) -> Outcome:
    """After an update that stays: scaler, schedule, averages, statistics, record."""
    if session.protected.has_buffers:
        session.protected.ledger.capture()
    if driver.advances:
        driver.advance(applied=True)
    session.scaling.probes_in_a_row = 0
    if reading.norm == 0.0 or session.recorder.tally.steps_without_gradient:
        session.recorder.note_gradient(missing=reading.norm == 0.0)
    ladder, spikes = session.ladder, session.spikes
    if ladder.in_a_row:
        ladder.applied()
    if spikes is not None:
        spikes.fresh.append((reading.loss, reading.norm))
        if len(spikes.fresh) >= spikes.block:
            spikes.absorb()
    incident = None
    if window.diagnosed or window.findings:
        incident = session.recorder.finish_dropped(window)
        if window.findings and incident is None:
            diagnosed = dropped_terms(session, window, reading.loss, dict(reading.terms))
            words = left_out_in_words(window.left_out, of=len(window.left_out) + len(reading.terms))
            incident = session.recorder.finish(diagnosed, Action.APPLY, words)
    return session.recorder.end(window, reading, Action.APPLY, incident)


def probe(session: Session, driver: Driver, window: Window, reading: Reading) -> Outcome:
    """The scaler found an overflow while it searches its scale: do exactly what it would do without the guard."""
    driver.probe()
    session.protected.ledger.capture()
    driver.advance(applied=False)
    window.probes_scale = True
    incident = session.recorder.finish_dropped(window, Action.SKIP, decided_by="scaler")
    return session.recorder.end(window, reading, Action.SKIP, incident)


def apply_anyway(
    session: Session,
    driver: Driver,
    window: Window,
    reading: Reading,
    observation: Observation,
    *,
    put_back: Callable[[], None] | None = None,
) -> Outcome:
    """The policy only observes: report, and do exactly what the plain loop would have done.

    Args:
        session: of the run.
        driver: who makes the update.
        window: the step.
        reading: what was read of it.
        observation: what was seen of it.
        put_back: puts the result of an update back that cannot be made again.
    """
    with session.protected.ledger.kept():
        diagnosed = diagnose(session, observation)
    if put_back is not None:
        put_back()
    elif observation.update:
        session.protected.result = driver.repeat_update()
    else:
        driver.clip(math.nan)
        session.protected.result = driver.take_update()
    session.protected.ledger.capture()
    driver.advance(applied=True)
    session.scaling.probes_in_a_row = 0
    incident = session.recorder.finish(diagnosed, Action.APPLY, "the policy only observes")
    return session.recorder.end(window, bad_reading(window, reading, observation), Action.APPLY, incident)
