"""A bad step before it is examined: what was seen of it, its incident, and the failure that can be run again.

`observe` notes what is bad while it is still there; what is restored afterwards leaves no trace in it. `incident_of`
and `failure_of` follow from it. The functions that complete an incident (where it began, why, that it was seen before)
are pure: from one incident to the next, and `diagnose` decides which of them apply. At the end are the incidents of
which everything is known when they are found, so that nothing is run again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nantrap import finite
from nantrap.guard.judge import Verdict
from nantrap.guard.session import Session
from nantrap.guard.state.members import current_rates
from nantrap.guard.state.protected import Protected
from nantrap.guard.watching.ranges import outside_in_words
from nantrap.guard.window import Diagnosed, Micro, Window, as_loss
from nantrap.incident import Action, Cause, Evidence, Finding, Fix, Incident, Phase
from nantrap.locate import Failure, Location, RunFacts, batch_size, finding, tensors_of
from nantrap.locate.batch import may_be_listed_image, samples_in
from nantrap.locate.budget import Budget
from nantrap.locate.failure import Beside
from nantrap.locate.replay.samples import dataset_indices
from nantrap.locate.twoline.terms import terms_of
from nantrap.locate.wrapping import arguments_by_name
from nantrap.thresholds import MOST_GRADIENTS

if TYPE_CHECKING:  # the rules are many: imported by the first failure
    from nantrap.causes import Explanation

_MOST_INPUTS = 16


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen of a bad step, taken before anything is restored.

    Attributes:
        micro: the micro-batch at fault, or the last one.
        values: its loss and terms as read.
        norm: the gradient norm.
        findings: what is non-finite, with statistics.
        gradients: the gradients by parameter name.
        verdict: what the ranks found.
        update: the update created the non-finite values, and was undone.
        spike: the step is finite and a spike.
        raised: the forward pass ended with an exception.
        harmless: only the loss is bad.
        agreed: every rank is here, so they may exchange what they find.
        micros: all micro-batches of the step, where it is not known which of them is at fault.
        number: which micro-batch of the step is at fault, from 1 on, and of how many, where that is known.
        evaluated: the optimizer evaluated the loss itself, several times in its update.
    """

    micro: Micro
    values: Sequence[float]
    norm: float
    findings: tuple[Finding, ...]
    gradients: Mapping[str, Tensor]
    verdict: Verdict
    update: bool = False
    spike: bool = False
    raised: bool = False
    harmless: bool = False
    agreed: bool = False
    micros: Sequence[Micro] = ()
    number: tuple[int, int] | None = None
    evaluated: bool = False

    @property
    def phase(self) -> Phase:
        """The phase in which it was noticed."""
        if self.update:
            return "optimizer"
        if self.spike and self.findings[0].phase == "data":
            return "data"
        forward = {f.kind for f in self.findings if f.phase == "forward"}
        if self.raised or forward & {"loss", "term", "buffer", "parameter", "spike"}:
            return "forward"
        if self.findings and all((f.kind, f.phase) == ("parameter", "state") for f in self.findings):
            return "state"
        return "backward"


def observe(
    session: Session,
    micro: Micro,
    norm: float,
    *,
    verdict: Verdict | None = None,
    buffers_bad: bool = False,
    update: Sequence[Finding] = (),
    spike: Finding | None = None,
    harmless: bool = False,
    agreed: bool = False,
    copy_gradients: bool = False,
    evaluated: bool = False,
) -> Observation:
    """Note what is bad.

    Args:
        session: of the run.
        micro: the micro-batch at fault, or the last one.
        norm: the gradient norm as read.
        verdict: what the ranks found; `None` if this rank alone knows of it.
        buffers_bad: whether the forward pass made buffers non-finite, or the script a parameter without a gradient.
        update: what the update made non-finite; it was undone.
        spike: the value that is far outside its recent range.
        harmless: only the loss is bad.
        agreed: every rank is here.
        copy_gradients: the gradients will be overwritten in place when the step is refused.
        evaluated: the optimizer evaluated the loss itself: the gradients are of its last evaluation, and are not kept.
    """
    protected, values = session.protected, micro.values or []
    found: list[Finding] = [] if spike is None else [spike]
    found += update
    if values:
        named = micro.loss.named(values[1:])
        found += [Finding("term", n, "forward", value=v) for n, v in named.items() if not math.isfinite(v)]
        if not math.isfinite(values[0]):
            found.append(Finding("loss", "loss", "forward", value=values[0]))
    if not update and not math.isfinite(norm):
        found += _bad_gradients(protected, norm, alone=not found)
    if buffers_bad:
        found += protected.ledger.findings("forward")
        found += [finding("parameter", *bad, "state") for bad in protected.ledger.bad_script_writes()]
    known = {} if evaluated else protected.members.named_gradients()
    gradients = {name: gradient.detach() for name, gradient in known.items()}
    return Observation(
        micro,
        values,
        norm,
        tuple(found),
        {name: grad.clone() for name, grad in gradients.items()} if copy_gradients else gradients,
        verdict or session.ranks.own_fault,
        update=bool(update),
        spike=spike is not None,
        harmless=harmless,
        agreed=agreed,
        evaluated=evaluated,
    )


def add_findings(observation: Observation, findings: Sequence[Finding]) -> Observation:
    """Adds findings before those of an observation."""
    return replace(observation, findings=(*findings, *observation.findings))


def micro_at_fault(micros: Sequence[Micro]) -> Micro | None:
    """The first micro-batch to whose model output a non-finite gradient came back; `None` if that tells nothing."""
    for micro in micros:
        calls = micro.root_call.chain() if micro.root_call is not None else []
        if finite.any_nonfinite([gradient for call in calls for gradient in call.cotangents.values()]):
            return micro
    return None


def _bad_gradients(protected: Protected, norm: float, *, alone: bool) -> list[Finding]:
    """The gradients that are non-finite; if all are finite, their norm, which overflowed."""
    members = protected.members
    guarded = {name for name, _ in members.named()}
    bad = [
        (name, gradient)
        for name, gradient in members.named_gradients().items()
        if name in guarded and finite.any_nonfinite([gradient])
    ]
    if bad or not alone:
        return [finding("gradient", name, grad, "backward") for name, grad in bad[:MOST_GRADIENTS]]
    gradients = members.gradients()
    if any(hasattr(gradient, "to_local") for gradient in gradients):  # the other ranks may not be here
        note = "every gradient is finite in this rank's shards; the non-finite values are in another rank's"
        return [Finding("grad_norm", "total gradient norm", "backward", value=norm, note=note)]
    exact = finite.exact_norm(gradients)
    note = f"every gradient is finite, their norm is {exact:.4g}, which overflowed to {norm}"
    return [Finding("grad_norm", "total gradient norm", "backward", value=norm, note=note)]


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


def inputs_of(micro: Micro) -> list[Finding]:
    """The tensors of a micro-batch with their statistics; of the model's call where only that is seen."""
    batch, note = micro.batch, ""
    if micro.forward is None:
        call = micro.root_call
        if call is None or call.module is None:
            return []
        batch = arguments_by_name(call.module, call.args, call.kwargs)
        note = "an argument of the model"
    found = []
    for path, tensor in itertools.islice(tensors_of(batch), _MOST_INPUTS):
        stats = finite.tensor_stats(tensor.detach())
        bad = stats.nonfinite and tensor.layout == torch.strided
        samples = samples_in(batch, tensor, finite.bad_places(tensor)) if bad else ()
        if samples:
            samples = _as_entries(micro, tensor, samples)
        found.append(Finding("batch", path, "data", stats=stats, note=note, samples=samples))
    return found


def _as_entries(micro: Micro, tensor: Tensor, rows: tuple[int, ...]) -> tuple[int, ...]:
    """The bad samples of a tensor: its bad rows, or the number of the list's entry that it is."""
    call = micro.root_call
    if call is None:
        return rows
    entry = None if call.origin is None else call.origin.sample_of(tensor)
    if entry is not None:
        return (entry,)
    return () if may_be_listed_image((call.args, call.kwargs), tensor) else rows


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
        anchors, applied = other.anchors.candidates(), other.recorder.history().applied()
        if applied and anchors:
            oldest = anchors[-1]
            updates = sum(record.step >= oldest.step for record in applied)
            rate, value_of = max(applied[-1].lr, default=math.nan), oldest.snapshot.value_of
            yield Beside(tuple(other.protected.members.parameters), rate, oldest.step, value_of, updates)


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


def bad_batch(
    session: Session, findings: Sequence[Finding], verdict: Verdict | None = None, *, batch: Any = None
) -> Diagnosed:
    """A batch that was found bad before the forward pass, here or on another rank.

    Args:
        session: of the run.
        findings: what is bad in it.
        verdict: of all ranks.
        batch: the batch, which may carry the dataset's indices.
    """
    guilty = tuple(sorted({i for f in findings for i in f.samples}))
    causes: tuple[Cause, ...] = ()
    notes: tuple[str, ...] = ()
    if findings:
        first = findings[0]
        described = first.stats.describe() if first.stats else ""
        cause = Cause(
            "bad_input_data",
            proven=True,
            risk="medium",
            confidence=1.0,
            summary=f"the batch holds non-finite values: {first.name}",
            evidence=(Evidence(f"{first.name}: {described}, before the forward pass"),),
            fix=Fix(text=f"fix or remove the sample where the dataset creates {first.name}"),
        )
        causes = (cause,)
    else:
        notes = (began_elsewhere(verdict.origin_rank if verdict else None),)
    incident = replace(
        new_incident(session, "data", verdict=verdict),
        module="data",
        findings=tuple(findings),
        causes=causes,
        samples=guilty,
        inputs=tuple(findings),
        notes=notes,
        dataset_indices=dataset_indices(batch, guilty, batch_size(batch)),
    )
    return Diagnosed(incident, worth_a_bundle=bool(findings))


def rank_divergence(session: Session, checksums: tuple[float, ...]) -> Diagnosed:
    """The ranks hold different parameters. Nothing is run again: the numbers are enough."""
    from nantrap.causes import Case, explain_case

    protected = session.protected
    verdict = Verdict(bad_ranks=session.ranks.members, contested=True)
    incident = new_incident(session, "state", verdict=verdict)
    failure = Failure(
        step=session.progress.step,
        root=protected.root,
        parameters=dict(protected.members.named()),
        optimizer=protected.optimizer,
        symptom="state",
        loss=None,
        loss_value=math.nan,
        gradients={},
        restore_buffers=protected.ledger.restore_buffers,
        run=RunFacts(session.recorder.history(), checksums=checksums),
    )
    case = Case(failure, Location(phase="state"), incident)
    return Diagnosed(with_explanation(incident, explain_case(case)))


def dropped_terms(session: Session, window: Window, loss: float, terms: dict[str, float]) -> Diagnosed:
    """A step that was applied without loss terms whose values are bad."""
    incident = replace(
        new_incident(session, "forward"),
        module="loss",
        findings=tuple(window.findings),
        loss=loss,
        terms=terms,
        notes=('the other terms were applied, as Policy(bad_terms="drop") asks',),
    )
    return Diagnosed(incident)
