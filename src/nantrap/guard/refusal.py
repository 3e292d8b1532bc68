"""The end of a step that is refused: note what is bad, restore everything, act, record.

    contain    observe_step, contain   what is bad is noted before anything is restored
    act        act                     skip, roll back or stop
    record     refuse                  the incident is final: bundle, journal line, message, tally

`run_step` calls these in order. `refuse_dropped`, `refuse_batch` and `refuse_exception` end steps that never came to a
gradient. `put_back_buffers` is for a bad step that this rank may not refuse alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nantrap.errors import NonFiniteError
from nantrap.guard.diagnosis.describe import Observation, bad_batch, micro_at_fault, observe
from nantrap.guard.diagnosis.diagnose import diagnose
from nantrap.guard.driver import Driver
from nantrap.guard.judge import Decision, Kind, Verdict, judge
from nantrap.guard.progress import stop_message
from nantrap.guard.session import Session
from nantrap.guard.state.members import current_rates
from nantrap.guard.window import Diagnosed, Outcome, Reading, Window
from nantrap.incident import Action, Finding, Incident
from nantrap.incident.wording import some_of
from nantrap.record.restarts import RunStop, tell_launcher


def observe_step(
    session: Session, driver: Driver, window: Window, reading: Reading, decision: Decision, undone: Sequence[Finding]
) -> Observation:
    """Note what is bad, before anything is restored."""
    verdict = decision.verdict
    spike = None
    if decision.spike:
        found = session.spikes.find(reading.loss, reading.norm) if session.spikes is not None else []
        if session.ranges is not None and session.ranges.findings:
            found = session.ranges.findings
        note = f"a spike on rank {verdict.origin_rank}"
        spike = found[0] if found else Finding("spike", "loss", "forward", note=note)
    micros = window.micros
    guilty = reading.guilty
    several = guilty is None and len(micros) > 1 and not undone and spike is None
    if several:
        guilty = micro_at_fault(micros)
    observation = observe(
        session,
        guilty or micros[-1],
        reading.norm,
        verdict=verdict,
        buffers_bad=reading.buffers_bad,
        update=undone,
        spike=spike,
        harmless=decision.harmless,
        agreed=True,
        copy_gradients=not driver.owns_gradients,
    )
    if several:
        return replace(observation, micros=tuple(micros))
    number = next((i for i, micro in enumerate(micros, start=1) if micro is reading.guilty), None)
    return observation if number is None or len(micros) < 2 else replace(observation, number=(number, len(micros)))


def contain(session: Session, driver: Driver, *, overflow: bool = False) -> None:
    """This step never happened: gradients, scaler, buffers, and what the forward pass wrote.

    Args:
        session: of the run.
        driver: who makes the update.
        overflow: the script's scaler lowers its scale, as it would alone; else it keeps the scale.
    """
    driver.refuse_update(overflow=overflow)
    session.protected.restore()


@dataclass(frozen=True, slots=True)
class Act:
    """What was done with a bad step, and why, in words."""

    action: Action
    reason: str


def act(session: Session, driver: Driver, decision: Decision, diagnosed: Diagnosed, *, blocked: str = "") -> Act:
    """Skip, roll back or stop. A rollback that fails says so, and stops."""
    incident = diagnosed.incident
    if decision.spike and session.ranges is not None and session.ranges.findings:
        return Act(Action.SKIP, 'skipped, as BatchChecks(unusual="skip") asks')
    if decision.spike:
        by_policy = session.policy.spikes.action == "skip"
        return Act(Action.SKIP, "a spike, skipped by the policy" if by_policy else "too large, skipped on the device")
    verdict, ranks = decision.verdict, session.ranks
    if again := repeated_on_any(session, incident):
        return Act(Action.STOP, again)
    if ranks.kept_apart and not blocked:
        blocked = "the ranks cannot agree here to roll back together"

    def no_way_back() -> str:
        if blocked or not ranks.talking:
            return blocked or session.recovery.no_way_back()
        return (session.recovery.no_way_back() or "another rank has no older state") if verdict.stop else ""

    spoiled = "" if blocked else spoiled_on_any(session, incident)
    harmless = decision.harmless and not spoiled
    action, reason = session.ladder.decide(
        session.progress.step,
        harmless=harmless,
        same_value=diagnosed.same_value and bool(session.recorder.tally.applied),
        spoiled=spoiled,
        no_way_back=no_way_back,
    )
    if action is Action.ROLLBACK:
        done, words = session.recovery.roll_back(lower_rate=not spoiled)
        return Act(Action.ROLLBACK if done else Action.STOP, reason + words)
    if beyond_repair := session.recovery.beyond_repair:
        reason += f"; {beyond_repair} non-finite, and there is no older state to go back to"
    if session.policy.skips.scheduler == "advance":
        driver.advance_schedule()
    return Act(action, reason)


def spoiled_on_any(session: Session, incident: Incident) -> str:
    """What of a run's state is non-finite on any rank although an older state is not, in words; else "".

    Each rank calls it where they talk: a rank that rolled back alone would have other weights than the rest.
    """
    own = session.recovery.spoiled(incident)
    if not session.ranks.talking:
        return own
    told = {rank: words for rank, words in session.ranks.share(own).items() if words}
    return next((f"on rank {rank} {words}" for rank, words in told.items()), "")


def repeated_on_any(session: Session, incident: Incident) -> str:
    """Words for a run whose last attempt stopped at the same incident; else "". Each rank calls it."""
    before = session.recorder.last_stop
    own = ""
    if before is not None and session.policy.on_incident == "skip" and RunStop.of(incident).is_like(before):
        own = f"the last attempt stopped at the same incident ({before.in_words()}): not tried again"
    if not session.ranks.talking:
        return own
    return next((words for words in session.ranks.share(own).values() if words), "")


def put_back_buffers(session: Session, window: Window, reading: Reading) -> None:
    """The step is applied, as on the other ranks; the buffers that became non-finite here are restored.

    Ranks that exchange nothing (`Join`, a rank without a guard) all apply a step whose averaged gradients are finite.
    Buffers are each rank's own, so a rank can restore them without the others.
    """
    micro = reading.guilty or window.micros[-1]
    observation = observe(session, micro, reading.norm, buffers_bad=True, copy_gradients=True)
    kinds = ("buffer", "parameter")
    names = ", ".join(dict.fromkeys(found.name for found in observation.findings if found.kind in kinds))
    try:
        with session.protected.ledger.kept():
            diagnosed = diagnose(session, observation)
    finally:  # also after Ctrl+C
        session.protected.ledger.restore_buffers()
        session.protected.ledger.restore_script_writes()
    words = f"the step was applied, because this rank cannot inform the others here; restored on this rank: {names}"
    window.diagnosed.append((diagnosed, words))


def refuse(
    session: Session,
    driver: Driver,
    window: Window,
    reading: Reading,
    diagnosed: Diagnosed,
    decision: Decision,
    *,
    blocked: str = "",
    words: str = "",
) -> Outcome:
    """The end of a refused step, which is contained and drafted by now: act, then record."""
    session.protected.restore()  # a replay may have left buffers at the beginning of a later micro-batch
    replaced = session.protected.ledger.restore_script_writes()
    acted = act(session, driver, decision, diagnosed, blocked=blocked)
    went_back = acted.action is Action.ROLLBACK
    if replaced and not went_back:
        diagnosed = diagnosed.noting(replaced_in_words(replaced))
    if went_back:
        step = session.recovery.restored_step
        diagnosed = diagnosed.with_incident(replace(diagnosed.incident, restored_step=step))
    incident = session.recorder.finish(
        diagnosed, acted.action, words + acted.reason, restored=None if went_back else session.protected.verify()
    )
    session.recorder.finish_dropped(window, acted.action)
    outcome = session.recorder.end(window, reading, acted.action, incident)
    if acted.action is Action.STOP:
        message = stop_message(incident, words + acted.reason, session.recovery.where_to_restart())
        before = session.recorder.last_stop
        stop = RunStop.of(incident, repeated=before is not None and RunStop.of(incident).is_like(before))
        session.recorder.note_stop(stop)
        tell_launcher(message)
        raise NonFiniteError(message, incident=incident, kind=stop.kind)
    return outcome


def replaced_in_words(names: Sequence[str]) -> str:
    """What was done with non-finite values that the script wrote between steps."""
    return (
        f"the non-finite values that the program wrote into {some_of(names, 3)} were replaced by the last finite ones"
    )


def refuse_dropped(session: Session, driver: Driver, window: Window) -> Outcome:
    """Every micro-batch was dropped. They were diagnosed one by one; the first one's incident is that of the step."""
    contain(session, driver)
    (diagnosed, _), *others = window.diagnosed
    window.diagnosed = others
    first = diagnosed.incident
    reading = Reading(
        norm=math.nan if first.grad_norm is None else first.grad_norm,
        loss=math.nan if first.loss is None else first.loss,
        terms=dict(first.terms),
        rates=current_rates(session.protected.optimizer),
        scale=driver.scaling.value(),
    )
    decision = Decision(Kind.REFUSE, session.ranks.own_fault)
    words = f"all {window.dropped} micro-batches were bad; "
    return refuse(session, driver, window, reading, diagnosed, decision, words=words)


def refuse_batch(
    session: Session, driver: Driver, window: Window, findings: Sequence[Finding], verdict: Verdict, batch: Any = None
) -> Outcome:
    """`BatchChecks.finite` found it before the forward pass: nothing was computed. A rollback repairs no data."""
    contain(session, driver)
    diagnosed = bad_batch(session, findings, verdict, batch=batch)
    reading = Reading(rates=current_rates(session.protected.optimizer), scale=driver.scaling.value())
    decision = judge(verdict, session.policy)
    return refuse(session, driver, window, reading, diagnosed, decision, blocked="the batch is at fault, not the state")


def refuse_exception(session: Session, driver: Driver, window: Window, diagnosed: Diagnosed, words: str) -> Outcome:
    """A non-finite value led to an exception before there was a loss."""
    contain(session, driver)
    reading = Reading(rates=current_rates(session.protected.optimizer), scale=driver.scaling.value())
    decision = Decision(Kind.REFUSE, session.ranks.own_fault)
    return refuse(session, driver, window, reading, diagnosed, decision, words=f"{words}; ")


def bad_reading(window: Window, reading: Reading, observation: Observation) -> Reading:
    """The reading of a bad step: its loss and terms are those of the micro-batch at fault."""
    if observation.spike or not observation.values or window.separate:
        return reading
    micro, values = observation.micro, observation.values
    return reading._replace(loss=values[0] * micro.factor, terms=micro.terms(values))
