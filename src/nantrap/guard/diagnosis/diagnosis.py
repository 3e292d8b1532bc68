"""From a bad step to the draft of an incident: where it began, and why. Runs only after a failure, and never raises."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from nantrap import finite
from nantrap.guard.bundling import material_of
from nantrap.guard.diagnosis.armed import Armed
from nantrap.guard.diagnosis.completing import (
    MAY_DIFFER,
    at_position_of,
    began_elsewhere,
    like_known,
    not_compared,
    signature_of,
    with_explanation,
    with_location,
    with_unusual_batch,
)
from nantrap.guard.diagnosis.describe import Describer, Neighbours
from nantrap.guard.diagnosis.exchange import exchange_incidents
from nantrap.guard.diagnosis.joint_diagnosis import JointDiagnosis, explore_graph
from nantrap.guard.diagnosis.repeating import repeated_magnitudes
from nantrap.guard.drafts import Draft
from nantrap.guard.judge import Verdict
from nantrap.guard.observation import Observation
from nantrap.guard.policy import Policy
from nantrap.guard.progress import Progress
from nantrap.guard.ranks.alone import Alone
from nantrap.guard.ranks.ranks import Ranks
from nantrap.guard.state.protected import Protected
from nantrap.guard.watching.magnitudes import Sampler
from nantrap.guard.watching.ranges import inputs_of
from nantrap.guard.window import Micro
from nantrap.incident import Incident
from nantrap.locate import FailedStep, Location, locate


class Diagnosis:
    """Turns observations into drafts. Counts those that look alike, so that a run with many failures stays fast.

    Args:
        describer: describes a failed step.
        protected: the state of the run.
        policy: how much to find out.
        ranks: the ranks that train this model.
        alone: lets this rank run the model without the others.
        progress: where the run is.
        sampler: how large the outputs of modules were.
        keeps_bundles: whether incidents are written to disk.
        begin: called when a diagnosis begins, so that a kill during it leaves a trace.
        neighbours: what is known outside the guard.
        armed: steps that are traced while they run.
    """

    def __init__(
        self,
        describer: Describer,
        protected: Protected,
        *,
        policy: Policy,
        ranks: Ranks,
        alone: Alone,
        progress: Progress,
        sampler: Sampler,
        keeps_bundles: bool,
        begin: Callable[[Incident], None],
        neighbours: Neighbours | None,
        armed: Armed,
    ) -> None:
        self._describer = describer
        self._protected = protected
        self._policy = policy
        self._ranks = ranks
        self._progress = progress
        self._sampler = sampler
        self._keeps_bundles = keeps_bundles
        self._begin = begin
        self._neighbours = neighbours
        self._armed = armed
        self._alone = alone
        self._joint = JointDiagnosis(describer, protected, policy=policy, ranks=ranks, alone=alone)
        self._seen: Counter[tuple[str, ...]] = Counter()
        self._known: dict[tuple[str, ...], list[Incident]] = {}
        self._poisoned_at: int | None = None
        self._wants_others = False

    # ---- a failed step

    def draft(self, observation: Observation) -> Draft:
        """The draft of a failed step. Locates it once; the state is as before afterwards."""
        if self._armed.running:
            self._armed.stop()  # a micro-batch is judged in the middle of a step
        draft = Draft(at_position_of(observation.micro, self._describer.incident(observation)))
        if observation.number is not None:
            draft.notes.append("it began in micro-batch {} of {}".format(*observation.number))
        self._begin(draft.incident)
        self._sampler.watch_closely(self._progress.step)
        if observation.spike and observation.phase == "data":
            draft.incident = with_unusual_batch(draft.incident)
        local = self._ranks.rank in observation.verdict.bad_ranks
        needs_all = local and not observation.spike and self._explore(draft, observation)
        if observation.agreed and self._ranks.talking:
            if self._joint.explore(draft, observation, wanted=needs_all):
                signature = signature_of(self._describer.incident(observation))
                self._known.setdefault(signature, []).append(draft.incident)
            writes = self._keeps_bundles and self._policy.bundle != "off"
            exchange_incidents(draft, observation.verdict, self._ranks, writes=writes)
            return draft
        if needs_all:
            words = "not run again: the model communicates with other ranks while it runs, and these take no part here"
            explore_graph(self._describer, draft, observation, words)
        incident = draft.incident
        if not local:
            draft.incident = replace(incident, notes=(began_elsewhere(observation.verdict.origin_rank),))
        elif observation.agreed and self._ranks.kept_apart and incident.op is None and incident.same_as is None:
            words = "the ranks average gradients and exchange nothing else here, so it may have begun on another rank"
            draft.incident = replace(incident, origin_rank=None, notes=(*incident.notes, words))
        if observation.update and self._ranks.kept_apart:
            draft.notes.append(MAY_DIFFER)
        return draft

    def draft_exception(self, micro: Micro, error: Exception) -> Draft | None:
        """The draft of a step that an exception ended; `None` if nothing non-finite led to the exception."""
        verdict = Verdict(bad=True, harmful=True, bad_ranks=(self._ranks.rank,))
        observation = Observation(micro, [], 0.0, (), {}, verdict, raised=True)
        draft = Draft(self._describer.incident(observation))
        untouched = self._protected.untouched()
        failed = self._describer.failed_step(observation)
        try:
            failed, location = locate(failed, seconds=self._policy.diagnose_seconds)
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
        failed = self._describer.failed_step(observation)
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
            words = f"the weights have been non-finite since step {self._poisoned_at:,}, which was applied unchanged"
            draft.incident = replace(draft.incident, same_as=self._poisoned_at, notes=(words,))
            return False
        if policy.on_incident == "observe" and not observation.harmless and self._poisoned_at is None:
            self._poisoned_at = self._progress.step
        if policy.diagnose == "off":
            return False
        if self._neighbours is not None and (known := self._neighbours.known_incident(observation.micro)) is not None:
            words = f"the same loss failed in the incident of step {known.step:,}, which has the diagnosis"
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
            failed = self._describer.failed_step(observation)
            if repeated and (known := self._similar(draft.incident, failed, self._known.get(signature, ()))):
                alike = "(same place, same evidence): no trials were run"
                words = f"looks like the incident of step {known.step:,} {alike}"
                draft.incident = like_known(draft.incident, known, words)
                return False
            failed, location = locate(failed, seconds=policy.diagnose_seconds)
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
                other = self._describer.failed_step(own)
                other, found = locate(other, seconds=self._policy.diagnose_seconds / len(micros))
                if found.op is None:
                    continue
                observation, failed, location = own, other, found
            if location.op is not None:
                number = next(i for i, m in enumerate(micros) if m is micro) + 1
                draft.notes.append(f"it began in micro-batch {number} of {len(micros)}")
                draft.incident = replace(at_position_of(micro, draft.incident), inputs=tuple(inputs_of(micro)))
                break
        return observation, failed, location

    def _similar(self, incident: Incident, failed: FailedStep, known: Sequence[Incident]) -> Incident | None:
        """The earlier incident that this one looks like, if there is one.

        The step is run once more to see where it began: phase, module, operation and rank must be the same, and what
        is measured there must point to the same cause. Nothing is tried, which is what a diagnosis takes time for.
        """
        if not known:
            return None
        failed, location = locate(failed, seconds=0.0)
        place = (location.phase, location.module, location.op, location.node, incident.rank)
        here = [k for k in known if (k.phase, k.module, k.op, k.node, k.rank) == place]
        if not here or self._policy.diagnose != "full":
            return here[0] if here else None
        from nantrap.causes import explain_case

        placed = with_location(incident, location)
        case = self._describer.case(failed, location, placed, untouched=self._protected.untouched())
        slugs = {cause.slug for cause in explain_case(case, seconds=0.0).causes} or {""}
        return next((k for k in here if (k.cause.slug if k.cause is not None else "") in slugs), None)

    def _explain(
        self, draft: Draft, observation: Observation, failed: FailedStep, location: Location, *, untouched: bool
    ) -> None:
        """The place goes into the draft, then the causes, and what a bundle needs to run the step again."""
        policy = self._policy
        incident = self._describer.with_run_facts(with_location(draft.incident, location), observation)
        draft.incident = incident
        draft.worth_a_bundle = True
        draft.avoidable = bool(location.samples.rest_is_finite)
        if policy.diagnose == "full":
            from nantrap.causes import explain_case

            case = self._describer.case(failed, location, incident, untouched=untouched)
            explanation = explain_case(case, seconds=policy.diagnose_seconds)
            self._wants_others = explanation.wants_others
            explained = with_explanation(incident, explanation)
            if (repeated := repeated_magnitudes(case, seconds=policy.diagnose_seconds / 10)) is not None:
                explained = replace(explained, magnitudes=(repeated, *explained.magnitudes))
            draft.incident = replace(explained, notes=(*case.notes, *explained.notes))
        if self._keeps_bundles and policy.bundle == "full":
            draft.material, note = material_of(
                failed,
                location,
                data=policy.bundle_data,
                batch_known=observation.micro.forward is not None,
                limit_bytes=policy.bundle_bytes,
            )
            draft.notes += [note] if note else []
