"""From a bad step to the draft of an incident: where it began, and why. Runs only after a failure, and never raises."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from nantrap import finite
from nantrap.errors import RankLostError
from nantrap.guard.alone import Alone
from nantrap.guard.anchors import Anchors
from nantrap.guard.armed import Armed
from nantrap.guard.bundling import material_of
from nantrap.guard.completing import (
    began_elsewhere,
    like_known,
    not_compared,
    signature_of,
    with_explanation,
    with_location,
    with_unusual_batch,
)
from nantrap.guard.drafts import Draft, build_incident
from nantrap.guard.hearing import hear_the_others
from nantrap.guard.joint import Leader, follow, run_jointly
from nantrap.guard.judge import Verdict
from nantrap.guard.loss import as_loss
from nantrap.guard.magnitudes import Sampler
from nantrap.guard.observation import Observation
from nantrap.guard.policy import Policy
from nantrap.guard.progress import Progress
from nantrap.guard.protected import Protected
from nantrap.guard.ranges import inputs_of
from nantrap.guard.ranks import Ranks
from nantrap.guard.rates import current_rates
from nantrap.guard.repeating import repeated_magnitudes
from nantrap.guard.scaling import Scaling
from nantrap.guard.window import Micro
from nantrap.incident import Incident
from nantrap.locate import FailedStep, Location, locate
from nantrap.locate.autopsy import Evidence as GraphEvidence
from nantrap.locate.location import evidence_location
from nantrap.locate.samples import find_samples
from nantrap.record import History

if TYPE_CHECKING:  # the rules are many: imported by the first failure
    from nantrap.causes import Case
    from nantrap.causes.trials import Laboratory


class Neighbours(Protocol):
    """What is known outside the guard: the data loader's indices, and the guards of other optimizers."""

    def name_samples(self, incident: Incident, micro: Micro) -> Incident:
        """The incident with the dataset's own indices, where they are known."""

    def known_incident(self, micro: Micro) -> Incident | None:
        """The incident of another guard that saw the same loss."""

    def remember_incident(self, micro: Micro, incident: Incident) -> None:
        """For another guard that sees the same loss."""


class Diagnosis:
    """Turns observations into drafts. Counts those that look alike, so that a run with many failures stays fast.

    Args:
        model: the model as it is called, in its wrapper.
        protected: the state of the run.
        policy: how much to find out.
        ranks: the ranks that train this model.
        progress: where the run is.
        scaling: the loss scale.
        history: the last steps.
        sampler: how large the outputs of modules were.
        anchors: older states, for trials.
        scheduler: the guard's scheduler, or `None`.
        max_grad_norm: to what the guard clips.
        keeps_bundles: whether incidents are written to disk.
        begin: called when a diagnosis begins, so that a kill during it leaves a trace.
        neighbours: what is known outside the guard.
        armed: steps that are traced while they run.
    """

    def __init__(
        self,
        model: nn.Module,
        protected: Protected,
        *,
        policy: Policy,
        ranks: Ranks,
        progress: Progress,
        scaling: Scaling,
        history: Callable[[], History],
        sampler: Sampler,
        anchors: Anchors,
        scheduler: Any,
        max_grad_norm: float | None,
        keeps_bundles: bool,
        begin: Callable[[Incident], None],
        neighbours: Neighbours | None = None,
        armed: Armed,
    ) -> None:
        self._protected = protected
        self._policy = policy
        self._ranks = ranks
        self._progress = progress
        self._scaling = scaling
        self._history = history
        self._sampler = sampler
        self._anchors = anchors
        self._scheduler = scheduler
        self._max_grad_norm = max_grad_norm
        self._keeps_bundles = keeps_bundles
        self._begin = begin
        self._neighbours = neighbours
        self._armed = armed
        self._alone = Alone(model, together=ranks.together)
        self._seen: Counter[tuple[str, ...]] = Counter()
        self._known: dict[tuple[str, ...], list[Incident]] = {}
        self._poisoned_at: int | None = None
        self._wants_others = False

    # ---- a failed step

    def draft(self, observation: Observation) -> Draft:
        """The draft of a failed step. Locates it once; the state is as before afterwards."""
        if self._armed.running:
            self._armed.stop()  # a micro-batch is judged in the middle of a step
        draft = Draft(self._bare(observation))
        if observation.number is not None:
            draft.notes.append("it began in micro-batch {} of {}".format(*observation.number))
        self._begin(draft.incident)
        self._sampler.watch_closely(self._progress.step)
        if observation.spike and observation.phase == "data":
            draft.incident = with_unusual_batch(draft.incident)
        local = self._ranks.rank in observation.verdict.bad_ranks
        takes_all = local and not observation.spike and self._explore(draft, observation)
        if observation.agreed and self._ranks.talking:
            self._explore_together(draft, observation, wanted=takes_all)
            writes = self._keeps_bundles and self._policy.bundle != "off"
            hear_the_others(draft, observation.verdict, self._ranks, writes=writes)
            return draft
        if takes_all:
            words = "not run again: the model communicates with other ranks while it runs, and they are elsewhere"
            self._explore_graph(draft, observation, words)
        incident = draft.incident
        if not local:
            draft.incident = replace(incident, notes=(began_elsewhere(observation.verdict.origin_rank),))
        elif observation.agreed and self._ranks.kept_apart and incident.op is None and incident.same_as is None:
            words = "the ranks average gradients and exchange nothing else here, so it may have begun on another rank"
            draft.incident = replace(incident, origin_rank=None, notes=(*incident.notes, words))
        return draft

    def draft_exception(self, micro: Micro, error: Exception) -> Draft | None:
        """The draft of a step that an exception ended; `None` if nothing non-finite led to the exception."""
        verdict = Verdict(bad=True, harmful=True, bad_ranks=(self._ranks.rank,))
        observation = Observation(micro, [], 0.0, (), {}, verdict, raised=True)
        draft = Draft(self._bare(observation))
        untouched = self._protected.untouched()
        failed = self._failed_step(observation)
        try:
            location = locate(failed, seconds=self._policy.diagnose_seconds)
        except Exception:  # a failing diagnosis must not hide the exception itself
            return None
        if location.op is None and location.phase not in ("data", "state"):
            return None
        self._begin(draft.incident)
        try:
            self._explain(draft, observation, failed, location, untouched=untouched)
        except Exception as failure:
            draft.notes.append(f"the diagnosis failed with {type(failure).__name__}: {failure}")
        text = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        others = tuple(note for note in draft.incident.notes if text not in note)  # the replay ended with it, too
        draft.incident = replace(draft.incident, notes=(f"the step ended with {text}", *others))
        return draft

    @property
    def runs_alone(self) -> bool:
        """Whether this rank can run its part of a step again without the others."""
        return self._alone.possible

    def finite_at_scale_one(self, micro: Micro) -> bool:
        """Whether a micro-batch whose scaled gradients overflowed has finite ones without the scale."""
        observation = Observation(micro, micro.values or [], math.nan, (), {}, Verdict())
        failed = self._failed_step(observation)
        if not failed.repeatable or failed.forward is None:
            return True
        try:
            with failed.rewound():
                failed.forward(failed.batch).backward()
                return not finite.any_nonfinite([p.grad for p in failed.parameters.values()])
        except Exception:  # a function that cannot be run again proves nothing
            return True

    # ---- parts

    def _explore(self, draft: Draft, observation: Observation) -> bool:
        """Locate and explain, as far as the policy asks for it and the run allows it.

        Returns:
            Whether the step can only be run again by all ranks together, so that nothing was found out yet.
        """
        policy = self._policy
        if self._poisoned_at is not None and finite.any_nonfinite(
            [p.detach() for p in self._protected.members.parameters]
        ):
            words = f"the weights are non-finite since step {self._poisoned_at:,}, which was applied unchanged"
            draft.incident = replace(draft.incident, same_as=self._poisoned_at, notes=(words,))
            return False
        if policy.on_incident == "observe" and not observation.harmless and self._poisoned_at is None:
            self._poisoned_at = self._progress.step
        if policy.diagnose == "off":
            return False
        if self._neighbours is not None and (known := self._neighbours.known_incident(observation.micro)) is not None:
            words = f"the loss is that of the incident of step {known.step:,}, where it was diagnosed"
            draft.incident = like_known(draft.incident, known, words)
            return False
        signature = signature_of(draft.incident)
        self._seen[signature] += 1
        repeated = self._seen[signature] > policy.repeat_diagnoses and not observation.verdict.contested
        if not self.runs_alone:
            if repeated and (earlier := self._known.get(signature)):
                draft.incident = not_compared(draft.incident, earlier[0])
                return False
            return True
        bare, self._alone.met_collective, self._wants_others = draft.incident, False, False
        try:
            untouched = self._protected.untouched()  # before a replay writes anything
            failed = self._failed_step(observation)
            if repeated and (known := self._similar(draft.incident, failed, self._known.get(signature, ()))):
                alike = "(same place, same evidence): no trials were run"
                words = f"looks like the incident of step {known.step:,} {alike}"
                draft.incident = like_known(draft.incident, known, words)
                return False
            location = locate(failed, seconds=policy.diagnose_seconds)
            if observation.micros:
                observation, failed, location = self._among_micros(draft, observation, failed, location)
            self._explain(draft, observation, failed, location, untouched=untouched)
        except Exception as error:  # a diagnosis is worth less than the run
            note = f"the diagnosis failed with {type(error).__name__}: {error}"
            draft.incident = replace(draft.incident, notes=(*draft.incident.notes, note))
            return False
        if self._alone.met_collective:  # the loss gathers something from all ranks
            draft.incident, draft.material, draft.notes = bare, None, []
            return True
        self._known.setdefault(signature, []).append(draft.incident)
        if words := self._armed.consider(draft.incident, repeatable=failed.repeatable):
            draft.incident = replace(draft.incident, notes=(*draft.incident.notes, words))
        if self._neighbours is not None:
            self._neighbours.remember_incident(observation.micro, draft.incident)
        proven = bool(draft.incident.causes) and draft.incident.causes[0].proven
        return self._wants_others and not proven and observation.agreed and self._ranks.talking

    def _among_micros(
        self, draft: Draft, observation: Observation, failed: FailedStep, location: Location
    ) -> tuple[Observation, FailedStep, Location]:
        """Of several micro-batches whose gradients were added up, the one in which it began, by running each again."""
        micros = observation.micros
        for micro in [observation.micro, *(m for m in micros if m is not observation.micro)]:
            if micro is not observation.micro:
                own = replace(observation, micro=micro, values=micro.values or [])
                other = self._failed_step(own)
                found = locate(other, seconds=self._policy.diagnose_seconds / len(micros))
                if found.op is None:
                    continue
                observation, failed, location = own, other, found
            if location.op is not None:
                number = next(i for i, m in enumerate(micros) if m is micro) + 1
                draft.notes.append(f"it began in micro-batch {number} of {len(micros)}")
                draft.incident = replace(draft.incident, inputs=tuple(inputs_of(micro)))
                break
        return observation, failed, location

    def _similar(self, incident: Incident, failed: FailedStep, known: Sequence[Incident]) -> Incident | None:
        """The earlier incident that this one looks like, if there is one.

        The step is run once more to see where it began: phase, module, operation and rank must be the same, and what
        is measured there must point to the same cause. Nothing is tried, which is what a diagnosis takes time for.
        """
        if not known:
            return None
        location = locate(failed, seconds=0.0)
        place = (location.phase, location.module, location.op, location.node, incident.rank)
        here = [k for k in known if (k.phase, k.module, k.op, k.node, k.rank) == place]
        if not here or self._policy.diagnose != "full":
            return here[0] if here else None
        from nantrap.causes import explain_case

        case = self._case(failed, location, with_location(incident, location), untouched=self._protected.untouched())
        slugs = {cause.slug for cause in explain_case(case, seconds=0.0).causes} or {""}
        return next((k for k in here if (k.cause.slug if k.cause is not None else "") in slugs), None)

    def _explore_together(self, draft: Draft, observation: Observation, *, wanted: bool) -> None:
        """All ranks run the step again at once, if any of them needs that. Each rank calls it."""
        if self._policy.diagnose == "off" or observation.spike:
            return
        untouched = self._protected.untouched()
        failed = replace(self._failed_step(observation), quiet=self._alone.unaveraged)
        joint = run_jointly(failed, self._ranks, wanted=wanted)
        if joint is None:
            return
        alone = draft.incident if draft.incident.op is not None else None  # what this rank found without the others
        incident, location = draft.incident, joint.location
        if wanted and location is not None:
            incident = self._named(with_location(self._bare(observation), location), observation)
            incident = replace(incident, notes=(*incident.notes, joint.words))
        for leader in joint.leaders if self._policy.diagnose == "full" else ():
            if leader == self._ranks.rank and location is not None:
                incident = self._lead(failed, location, incident, observation, untouched=untouched)
            else:
                follow(leader, failed, self._ranks, self._laboratory(failed, incident))
        if not wanted:
            return
        if location is None:
            if alone is None:
                self._explore_graph(draft, observation, joint.words)
            return
        if self._policy.diagnose == "full" and self._ranks.rank not in joint.leaders:
            incident = self._read_only(failed, location, incident, untouched=untouched)
        best = incident.causes[0].proven if incident.causes else False
        if alone is not None and not best:
            return  # all ranks together found no more than this one alone
        draft.incident = incident
        draft.worth_a_bundle = True
        self._known.setdefault(signature_of(self._bare(observation)), []).append(draft.incident)

    def _lead(
        self,
        failed: FailedStep,
        location: Location,
        incident: Incident,
        observation: Observation,
        *,
        untouched: bool,
    ) -> Incident:
        """Ask the rules, and let all ranks run what they want to try. Ends for the others, whatever happens."""
        from nantrap.causes import explain_case

        leader = Leader(failed, self._ranks, self._laboratory(failed, incident))
        # outside the runs of all ranks nothing may wait for them
        own = replace(failed, quiet=self._alone.running, crew=leader)
        try:
            seconds = self._policy.diagnose_seconds
            location.samples = find_samples(own, seconds=seconds / 3)
            if location.samples.note:
                location.notes.append(location.samples.note)
            words = incident.notes
            incident = self._named(with_location(self._bare(observation), location), observation)
            incident = replace(incident, notes=tuple(dict.fromkeys((*incident.notes, *words))))
            case = self._case(own, location, incident, untouched=untouched)
            return with_explanation(incident, explain_case(case, seconds=seconds))
        except RankLostError:
            raise
        except Exception as error:  # a diagnosis is worth less than the run
            note = f"the diagnosis failed with {type(error).__name__}: {error}"
            return replace(incident, notes=(*incident.notes, note))
        finally:
            leader.end()

    def _laboratory(self, failed: FailedStep, incident: Incident) -> Laboratory:
        """Runs earlier steps of this rank when another one asks for it."""
        from nantrap.causes.trials import Laboratory

        case = self._case(failed, Location(phase=failed.symptom), incident, untouched=False)
        return Laboratory(case, seconds=self._policy.diagnose_seconds)

    def _read_only(self, failed: FailedStep, location: Location, incident: Incident, *, untouched: bool) -> Incident:
        """No trials: the rules read what was recorded."""
        from nantrap.causes import explain_case

        still = replace(failed, forward=None)
        found = explain_case(self._case(still, location, incident, untouched=untouched), seconds=0.0)
        return replace(incident, causes=tuple(cause for cause in found.causes if cause.slug != "unknown"))

    def _explore_graph(self, draft: Draft, observation: Observation, words: str) -> None:
        """What the graph of the failed pass and this rank's own shards tell: nothing is run again."""
        incident = draft.incident
        evidence = observation.micro.evidence
        if isinstance(evidence, GraphEvidence):
            try:
                location = evidence_location(evidence, self._failed_step(observation))
                location.notes = [each.partition("; guard.attempt")[0] for each in location.notes]  # it would not help
                incident = self._named(with_location(incident, location), observation)
            except Exception as error:  # a diagnosis is worth less than the run
                incident = replace(incident, notes=(*incident.notes, f"the graph could not be read: {error}"))
        draft.incident = replace(incident, notes=(*incident.notes, words))
        draft.worth_a_bundle = True

    def _named(self, incident: Incident, observation: Observation) -> Incident:
        """The incident with the dataset's own indices, where the loop knows them, and with the suspect's magnitudes."""
        sampled = self._sampler.of(incident.module, incident.phase)
        if sampled is not None:
            incident = replace(incident, magnitudes=(sampled,))
        if self._policy.headroom_every and incident.module:
            trend = self._sampler.trend(incident.module)
            incident = replace(incident, headroom={str(step): round(bits, 2) for step, bits in trend})
        return incident if self._neighbours is None else self._neighbours.name_samples(incident, observation.micro)

    def _explain(
        self, draft: Draft, observation: Observation, failed: FailedStep, location: Location, *, untouched: bool
    ) -> None:
        """The place goes into the draft, then the causes, and what a bundle needs to run the step again."""
        policy = self._policy
        incident = self._named(with_location(draft.incident, location), observation)
        draft.incident = incident
        draft.worth_a_bundle = True
        draft.avoidable = bool(location.samples.rest_is_finite)
        if policy.diagnose == "full":
            from nantrap.causes import explain_case

            case = self._case(failed, location, incident, untouched=untouched)
            before = len(location.notes)
            explanation = explain_case(case, seconds=policy.diagnose_seconds)
            self._wants_others = explanation.wants_others
            explained = with_explanation(incident, explanation)
            if (repeated := repeated_magnitudes(case, seconds=policy.diagnose_seconds / 10)) is not None:
                explained = replace(explained, magnitudes=(repeated, *explained.magnitudes))
            draft.incident = replace(explained, notes=(*location.notes[before:], *explained.notes))
        if self._keeps_bundles and policy.bundle == "full":
            draft.material, note = material_of(
                failed,
                location,
                data=policy.bundle_data,
                batch_known=observation.micro.forward is not None,
                limit_bytes=policy.bundle_bytes,
            )
            draft.notes += [note] if note else []

    def _bare(self, observation: Observation) -> Incident:
        """The incident as it was observed: nothing was run again."""
        values = observation.values
        return build_incident(
            self._progress,
            rank=self._ranks.rank,
            verdict=observation.verdict,
            phase=observation.phase,
            findings=observation.findings,
            loss=values[0] if values else None,
            terms=observation.micro.loss.named(list(values[1:])) if values else {},
            norm=observation.norm,
            rates=current_rates(self._protected.optimizer),
            inputs=inputs_of(observation.micro),
        )

    def _failed_step(self, observation: Observation) -> FailedStep:
        """Everything by which the failed step can be run again, as `locate` takes it."""
        protected, micro = self._protected, observation.micro
        forward = None
        if micro.forward is not None:
            fn = micro.forward
            forward = lambda batch: as_loss(fn(batch)).total  # noqa: E731
        return FailedStep(
            step=self._progress.step,
            root=protected.root,
            parameters=dict(protected.members.known()),
            optimizer=protected.optimizer,
            symptom=observation.phase,
            loss=micro.loss.total,
            loss_value=observation.values[0] if observation.values else math.nan,
            gradients=observation.gradients,
            restore_buffers=protected.buffers.restore_mark,
            loss_factor=micro.factor * (self._scaling.value() or 1.0),
            forward=forward,
            batch=micro.batch,
            batch_versions=micro.versions or {},
            rng=micro.rng,
            root_call=micro.root_call,
            restore_update=protected.restore_for_replay(undone=observation.update),
            run_update=protected.optimizer.step if observation.update else None,
            deliberate=tuple(protected.buffers.exempt_names()),
            bad_buffers=tuple(
                f.name
                for f in observation.findings
                if f.kind == "buffer" or (f.kind, f.phase) == ("parameter", "forward")
            ),
            norm_overflowed=any(f.kind == "grad_norm" for f in observation.findings),
            evidence=micro.evidence,
            quiet=self._alone.running,
            tape=self._armed.last,
            averaged=self._ranks.together and self._ranks.replicated,
        )

    def _case(self, failed: FailedStep, location: Location, incident: Incident, *, untouched: bool) -> Case:
        """The same, with its place and the history of the run, as the rules take it."""
        from nantrap.causes import Case

        return Case(
            failed=failed,
            location=location,
            incident=incident,
            history=self._history(),
            scale=self._scaling.value(),
            max_grad_norm=self._max_grad_norm,
            anchors=self._anchors,
            ema_modules=tuple(self._protected.averages),
            scheduler=self._scheduler,
            state_untouched=untouched,
            loaded=self._progress.loaded,
        )
