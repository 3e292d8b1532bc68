"""A bad step in two forms: the `Incident` as it was seen, and the `Failure` that can be run again."""

from __future__ import annotations

import math
from dataclasses import replace

from nantrap.guard.judge import Verdict
from nantrap.guard.loss import as_loss
from nantrap.guard.observation import Observation
from nantrap.guard.session import Session
from nantrap.guard.state.rates import current_rates
from nantrap.guard.watching.ranges import inputs_of
from nantrap.incident import Action, Incident, Phase
from nantrap.locate import Failure, RunFacts
from nantrap.locate.twoline.terms import terms_of


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
        run_update=protected.optimizer.step if observation.update else None,
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


def run_facts(session: Session) -> RunFacts:
    """What is known of the run around a step that failed."""
    protected = session.protected
    return RunFacts(
        history=session.recorder.history(),
        scale=session.scaling.value(),
        max_grad_norm=session.setup.max_grad_norm,
        anchors=session.anchors,
        ema_modules=tuple(protected.averages),
        scheduler=session.setup.scheduler,
        untouched=protected.untouched(),
        loaded=session.progress.loaded,
        bad_before=protected.bad_before,
    )
