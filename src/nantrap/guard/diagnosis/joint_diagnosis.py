"""A diagnosis by all ranks together: each of them runs its part of the step again, and tries the same causes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nantrap.errors import RankLostError
from nantrap.guard.diagnosis.completing import with_explanation, with_location
from nantrap.guard.diagnosis.describe import Describer
from nantrap.guard.drafts import Draft
from nantrap.guard.observation import Observation
from nantrap.guard.policy import Policy
from nantrap.guard.ranks.alone import Alone
from nantrap.guard.ranks.joint import Leader, follow, run_jointly
from nantrap.guard.ranks.ranks import Ranks
from nantrap.guard.state.protected import Protected
from nantrap.incident import Incident
from nantrap.locate import FailedStep, Location
from nantrap.locate.location import evidence_location
from nantrap.locate.replay.samples import find_samples
from nantrap.locate.twoline.autopsy import Evidence as GraphEvidence

if TYPE_CHECKING:  # the rules are many: imported by the first failure
    from nantrap.causes.trials import Laboratory


class JointDiagnosis:
    """Locates and explains a step with all ranks at once. Every rank has one, and they call it at the same time.

    Args:
        describer: describes a failed step.
        protected: the state of the run.
        policy: how much to find out.
        ranks: the ranks that train this model.
        alone: lets this rank run the model without the others.
    """

    def __init__(
        self, describer: Describer, protected: Protected, *, policy: Policy, ranks: Ranks, alone: Alone
    ) -> None:
        self._describer = describer
        self._protected = protected
        self._policy = policy
        self._ranks = ranks
        self._alone = alone

    def explore(self, draft: Draft, observation: Observation, *, wanted: bool) -> bool:
        """All ranks run the step again at once, if any of them needs that. Each rank calls it.

        Args:
            draft: this rank's draft, which takes what is found.
            observation: what this rank saw of the step.
            wanted: whether this rank needs it.

        Returns:
            Whether the draft now holds what the ranks found together.
        """
        if self._policy.diagnose == "off" or observation.spike:
            return False
        untouched = self._protected.untouched()
        failed = replace(self._describer.failed_step(observation), quiet=self._alone.unaveraged)
        joint = run_jointly(failed, self._ranks, wanted=wanted)
        if joint is None:
            return False
        alone = draft.incident if draft.incident.op is not None else None  # what this rank found without the others
        incident, failed, location = draft.incident, joint.failed, joint.location
        if wanted and location is not None:
            incident = self._placed(observation, location)
            incident = replace(incident, notes=(*incident.notes, joint.words))
        for leader in joint.leaders if self._policy.diagnose == "full" else ():
            if leader == self._ranks.rank and location is not None:
                incident = self._lead(failed, location, incident, observation, untouched=untouched)
            else:
                follow(leader, failed, self._ranks, self._laboratory(failed, incident))
        if not wanted:
            return False
        if location is None:
            if alone is None:
                explore_graph(self._describer, draft, observation, joint.words)
            return False
        if self._policy.diagnose == "full" and self._ranks.rank not in joint.leaders:
            incident = self._read_only(failed, location, incident, untouched=untouched)
        best = incident.causes[0].proven if incident.causes else False
        if alone is not None and not best:
            return False  # all ranks together found no more than this one alone
        draft.incident = incident
        draft.worth_a_bundle = True
        return True

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
            location = replace(location, samples=find_samples(own, seconds=seconds / 3))
            if location.samples.note:
                location = location.noting(location.samples.note)
            words = incident.notes
            incident = self._placed(observation, location)
            incident = replace(incident, notes=tuple(dict.fromkeys((*incident.notes, *words))))
            case = self._describer.case(own, location, incident, untouched=untouched)
            return with_explanation(incident, explain_case(case, seconds=seconds))
        except RankLostError:
            raise
        except Exception as error:  # a diagnosis is worth less than the run
            note = f"the diagnosis failed with {type(error).__name__}: {error}"
            return replace(incident, notes=(*incident.notes, note))
        finally:
            leader.end()

    def _placed(self, observation: Observation, location: Location) -> Incident:
        """The incident as it was observed, with the place where it began."""
        incident = with_location(self._describer.incident(observation), location)
        return self._describer.with_run_facts(incident, observation)

    def _laboratory(self, failed: FailedStep, incident: Incident) -> Laboratory:
        """Runs earlier steps of this rank when another one asks for it."""
        from nantrap.causes.trials import Laboratory

        case = self._describer.case(failed, Location(phase=failed.symptom), incident, untouched=False)
        return Laboratory(case, seconds=self._policy.diagnose_seconds)

    def _read_only(self, failed: FailedStep, location: Location, incident: Incident, *, untouched: bool) -> Incident:
        """No trials: the rules read what was recorded."""
        from nantrap.causes import explain_case

        still = replace(failed, forward=None)
        found = explain_case(self._describer.case(still, location, incident, untouched=untouched), seconds=0.0)
        return replace(incident, causes=tuple(cause for cause in found.causes if cause.slug != "unknown"))


def explore_graph(describer: Describer, draft: Draft, observation: Observation, words: str) -> None:
    """What the graph of the failed pass and this rank's own shards tell: nothing is run again."""
    incident = draft.incident
    evidence = observation.micro.evidence
    if isinstance(evidence, GraphEvidence):
        try:
            location = evidence_location(evidence, describer.failed_step(observation))
            notes = (each.partition("; guard.attempt")[0] for each in location.notes)  # it would not help
            location = replace(location, notes=tuple(notes))
            incident = describer.with_run_facts(with_location(incident, location), observation)
        except Exception as error:  # a diagnosis is worth less than the run
            incident = replace(incident, notes=(*incident.notes, f"the graph could not be read: {error}"))
    draft.incident = replace(incident, notes=(*incident.notes, words))
    draft.worth_a_bundle = True
