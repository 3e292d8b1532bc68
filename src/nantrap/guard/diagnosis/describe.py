"""A bad step in two forms: the `Incident` as it was seen, and the `Failure` that can be run again.

The functions that complete an incident (where it began, why, that it was seen before) are pure: from one incident to
the next. `diagnose` decides which of them apply.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from nantrap.guard.judge import Verdict
from nantrap.guard.loss import as_loss
from nantrap.guard.observation import Observation
from nantrap.guard.session import Session
from nantrap.guard.state.rates import current_rates
from nantrap.guard.watching.ranges import inputs_of, outside_in_words
from nantrap.guard.window import Micro
from nantrap.incident import Action, Cause, Evidence, Fix, Incident, Phase
from nantrap.locate import Failure, Location, RunFacts
from nantrap.locate.budget import Budget
from nantrap.locate.failure import Beside
from nantrap.locate.twoline.terms import terms_of

if TYPE_CHECKING:  # the rules are many: imported by the first failure
    from nantrap.causes import Explanation


def new_incident(session: Session, phase: Phase, *, verdict: Verdict | None = None) -> Incident:
    """An incident of the present step of which nothing else is known yet.

    Args:
        session: of the run.
        phase: in which it was noticed.
        verdict: of all ranks; `None` if this rank alone knows of it.
    """
    progress, rank = session.progress, session.ranks.rank
    return Incident(
        step=progress.step,
        rank=rank,
        origin_rank=rank if verdict is None else verdict.origin_rank,
        bad_ranks=(rank,) if verdict is None else verdict.bad_ranks,
        epoch=progress.epoch,
        batch=progress.batch,
        phase=phase,
        action=Action.SKIP,
        lr=current_rates(session.protected.optimizer),
    )


def incident_of(session: Session, observation: Observation) -> Incident:
    """The incident as it was observed: nothing was run again."""
    values = observation.values
    return replace(
        new_incident(session, observation.phase, verdict=observation.verdict),
        findings=observation.findings,
        loss=values[0] if values else None,
        terms=_terms(observation),
        grad_norm=observation.norm,
        inputs=tuple(inputs_of(observation.micro)),
    )


def _terms(observation: Observation) -> dict[str, float]:
    """The loss terms as the program named them, or as a statement of the program adds them up."""
    values, loss = observation.values, observation.micro.loss
    if loss.terms or observation.micro.forward is not None or not values:
        return dict(loss.named(list(values[1:]))) if values else {}
    return dict(terms_of(loss.total))


def with_run_facts(session: Session, incident: Incident, observation: Observation) -> Incident:
    """The incident with the dataset's own indices, where the loop knows them, and with the suspect's magnitudes."""
    sampled = session.sampler.of(incident.module, incident.phase)
    if sampled is not None:
        incident = replace(incident, magnitudes=(sampled,))
    if session.policy.sampling.headroom_every and incident.module:
        trend = session.sampler.trend(incident.module)
        incident = replace(incident, headroom={str(step): round(bits, 2) for step, bits in trend})
    neighbours = session.setup.neighbours
    return incident if neighbours is None else neighbours.name_samples(incident, observation.micro)


def failure_of(session: Session, observation: Observation) -> Failure:
    """Everything that is known of the failed step, and how to run it again. Runs nothing and changes nothing."""
    protected, micro = session.protected, observation.micro
    forward = None
    if micro.forward is not None:
        fn = micro.forward
        forward = lambda batch: as_loss(fn(batch)).total  # noqa: E731
    findings = observation.findings
    return Failure(
        step=session.progress.step,
        root=protected.root,
        parameters=dict(protected.members.known()),
        optimizer=protected.optimizer,
        symptom=observation.phase,
        loss=micro.loss.total,
        loss_value=observation.values[0] if observation.values else math.nan,
        gradients=observation.gradients,
        restore_buffers=protected.ledger.restore_mark,
        loss_factor=micro.factor * (session.scaling.value() or 1.0),
        forward=forward,
        batch=micro.batch,
        batch_versions=micro.versions or {},
        rng=micro.rng,
        root_call=micro.root_call,
        restore_update=protected.restore_for_replay(undone=observation.update),
        undone=observation.update,
        evaluated=observation.evaluated,
        deliberate=tuple(protected.ledger.exempt_names()),
        bad_buffers=tuple(
            f.name for f in findings if f.kind == "buffer" or (f.kind, f.phase) == ("parameter", "forward")
        ),
        written_between=tuple(f.name for f in findings if (f.kind, f.phase) == ("parameter", "state")),
        norm_overflowed=any(f.kind == "grad_norm" for f in findings),
        evidence=micro.evidence,
        quiet=session.alone.running,
        tape=session.armed.last,
        averaged=session.ranks.together and session.ranks.replicated,
        run=run_facts(session),
    )


def budget_of(session: Session) -> Budget:
    """How long the diagnosis of a failure may take, beginning now."""
    limits, step = session.policy.diagnosis, session.recorder.history().step_seconds()
    return Budget(limits.seconds, steps=limits.steps, step=step, clock=limits.clock)


def run_facts(session: Session) -> RunFacts:
    """What is known of the run around a step that failed."""
    protected = session.protected
    return RunFacts(
        history=session.recorder.history(),
        scale=session.scaling.value(),
        max_grad_norm=session.setup.max_grad_norm,
        anchors=session.anchors,
        first=protected.first,
        beside=tuple(_beside(session)),
        ema_modules=tuple(protected.averages),
        scheduler=session.setup.scheduler,
        untouched=protected.untouched(),
        loaded=session.progress.loaded,
        bad_before=protected.bad_before,
    )


def _beside(session: Session) -> Iterator[Beside]:
    """The other networks of this training, each with its oldest state that is kept."""
    for other in session.others:
        anchors, first, applied = other.anchors.candidates(), other.protected.first, other.recorder.history().applied()
        state = anchors[-1].snapshot if anchors else first
        if not applied or state is None or not state.fits():
            continue
        step = anchors[-1].step if anchors else applied[0].step
        updates = sum(record.step >= step for record in applied)
        rate = max(applied[-1].lr, default=math.nan)
        yield Beside(tuple(other.protected.members.parameters), rate, step, state.value_of, updates)


def with_location(incident: Incident, location: Location) -> Incident:
    """The incident with the place where it began. What was seen there comes before what was seen at the end."""
    samples, notes = location.samples, location.notes
    batch, indices = samples.guilty, samples.dataset_indices
    all_fail = len(batch) > 1 and len(batch) == samples.size
    measured = tuple(sorted({i for f in location.findings for i in f.samples})) if location.phase == "data" else ()
    if measured and (all_fail or not batch):
        # a loss that mixes the samples fails with each of them, and yet the bad values are in a few
        by_sample = dict(zip(batch, indices, strict=False))
        batch, indices = measured, tuple(by_sample[i] for i in measured if i in by_sample)
        indices = indices if len(indices) == len(batch) else ()
    elif all_fail:  # a list of all of them would say nothing
        batch, indices = (), ()
        words = f"each of the {samples.size:,} samples of the batch fails alone, so no single one is the reason"
        notes = (*notes, words)
    return replace(
        incident,
        phase=location.phase,
        module=location.module,
        op=location.op,
        node=location.node,
        source=location.source,
        call=location.call,
        findings=(*location.findings, *incident.findings),
        samples=batch,
        dataset_indices=indices,
        frames=location.frames,
        path=location.path,
        probes=location.probes,
        exact=location.exact,
        notes=(*incident.notes, *notes),
    )


_OF_THE_WEIGHTS = frozenset(("lr_too_high", "resume_lr_jump", "bad_initialisation"))


def with_explanation(incident: Incident, explanation: Explanation) -> Incident:
    """The incident with its causes, and with what was tried.

    Weights that are far too large fail first on the largest samples. Those are innocent, and are not named.
    """
    if explanation.causes and explanation.causes[0].slug in _OF_THE_WEIGHTS:
        incident = replace(incident, samples=(), dataset_indices=())
    return replace(
        incident,
        causes=explanation.causes,
        refuted=explanation.refuted,
        trials=explanation.trials,
        controls=explanation.controls,
        notes=(*incident.notes, *explanation.notes),
    )


def of_statement(cause: Cause, *, number: int) -> Cause:
    """A cause that was found in one statement, run again alone: the rules speak of a step.

    Args:
        cause: the cause.
        number: of trials that the incident has already.
    """

    def said(text: str) -> str:
        return text.replace("the step", "the statement").replace("in the loss", "in the statement")

    def moved(trial: int | None) -> int | None:
        return None if trial is None else trial + number

    evidence = tuple(replace(each, text=said(each.text), trial=moved(each.trial)) for each in cause.evidence)
    fix = cause.fix
    if fix is not None:
        others = tuple(replace(other, trial=moved(other.trial)) for other in fix.others)
        fix = replace(fix, trial=moved(fix.trial), others=others, of="statement")
    return replace(cause, summary=said(cause.summary), evidence=evidence, fix=fix)


def with_unusual_batch(incident: Incident) -> Incident:
    """A batch outside its usual range: nothing failed, and what was measured is all there is to say."""
    found = [finding for finding in incident.findings if finding.kind == "batch"]
    cause = Cause(
        "input_out_of_scale",
        proven=True,
        risk="medium",
        confidence=1.0,
        summary=outside_in_words(found),
        evidence=tuple(Evidence(f"{finding.name} {finding.note}") for finding in found),
        fix=Fix(text=f"check the range of {found[0].name} where the data are read, and scale or drop what is outside"),
    )
    samples = tuple(sorted({index for finding in found for index in finding.samples}))
    return replace(incident, module="data", causes=(cause,), samples=samples)


def signature_of(incident: Incident) -> tuple[str, ...]:
    """What is known of an incident without running anything: two that agree in it count as the same."""
    return (incident.phase, *sorted({f"{f.kind}:{f.name}" for f in incident.findings})[:8])


def like_known(incident: Incident, known: Incident, words: str) -> Incident:
    """An incident that was seen before: its place and causes are taken over, and it refers back."""
    return replace(
        incident,
        phase=known.phase,
        module=known.module,
        op=known.op,
        node=known.node,
        source=known.source,
        causes=_guessed(known.causes),
        same_as=known.step,
        notes=(words,),
    )


def _guessed(causes: tuple[Cause, ...]) -> tuple[Cause, ...]:
    """The causes of an incident that looks like this one, as guesses.

    Their summaries name samples and values of another batch; the titles hold for both. A guess stays a guess.
    """
    return tuple(
        replace(cause, proven=False, summary=cause.title if cause.proven else f"perhaps {cause.title}")
        for cause in causes
    )


def not_compared(incident: Incident, earlier: Incident) -> Incident:
    """Adds the causes of an earlier incident as guesses: its tensors are bad again, and the ranks run nothing again."""
    note = f"the same tensors are bad as in step {earlier.step:,}; the step was not run again, so its cause is a guess"
    return replace(incident, causes=_guessed(earlier.causes), same_as=earlier.step, notes=(*incident.notes, note))


def at_position_of(micro: Micro, incident: Incident) -> Incident:
    """The incident at the epoch and batch of a micro-batch, where they are known: the step ends with a later one."""
    if micro.position is None:
        return incident
    epoch, batch = micro.position
    return replace(incident, epoch=epoch, batch=batch)


MAY_DIFFER = (
    "the ranks exchange nothing here: if the other ranks applied this step, their weights differ from those of this "
    "rank now"
)
"""An update that went wrong on one of several ranks that cannot tell each other."""


def began_elsewhere(rank: int | None) -> str:
    """The note of a rank on which nothing began."""
    return "it began on another rank" if rank is None else f"it began on rank {rank}; see that rank's incident"
