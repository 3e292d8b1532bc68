"""A diagnosis by all ranks together: each of them runs its part of the step again, and tries the same causes.

Every rank calls these functions at the same time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from nantrap.errors import RankLostError
from nantrap.guard.diagnosed import Diagnosed
from nantrap.guard.diagnosis.completing import with_explanation, with_location
from nantrap.guard.diagnosis.describe import failure_of, incident_of, with_run_facts
from nantrap.guard.observation import Observation
from nantrap.guard.ranks.joint import Leader, follow, run_jointly
from nantrap.guard.session import Session
from nantrap.incident import Incident
from nantrap.locate import Failure, Location
from nantrap.locate.location import evidence_location
from nantrap.locate.replay.samples import find_samples
from nantrap.locate.twoline.autopsy import Evidence as GraphEvidence

if TYPE_CHECKING:  # the rules are many: imported by the first failure
    from nantrap.causes.trials import Laboratory


class Joined(NamedTuple):
    """What is known after all ranks ran the step again.

    Attributes:
        diagnosed: the incident of this rank.
        together: it holds what the ranks found together.
    """

    diagnosed: Diagnosed
    together: bool = False


def explore_together(session: Session, observation: Observation, found: Diagnosed, *, wanted: bool) -> Joined:
    """All ranks run the step again at once, if any of them needs that. Each rank calls it.

    Args:
        session: of the run.
        observation: what this rank saw of the step.
        found: what this rank found by itself.
        wanted: whether this rank needs the others.
    """
    policy, ranks = session.policy, session.ranks
    if policy.diagnose == "off" or observation.spike:
        return Joined(found)
    failure = replace(failure_of(session, observation), quiet=session.alone.unaveraged)
    joint = run_jointly(failure, ranks, wanted=wanted)
    if joint is None:
        return Joined(found)
    found_alone = found.incident.op is not None
    incident, failure, location = found.incident, joint.failure, joint.location
    if wanted and location is not None:
        incident = _placed(session, observation, location)
        incident = replace(incident, notes=(*incident.notes, joint.words))
    for leader in joint.leaders if policy.diagnose == "full" else ():
        if leader == ranks.rank and location is not None:
            incident = _lead(session, failure, location, incident, observation)
        else:
            follow(leader, failure, ranks, _laboratory(session, failure, incident))
    if not wanted:
        return Joined(found)
    if location is None:
        return Joined(found if found_alone else explore_graph(session, observation, found, joint.words))
    if policy.diagnose == "full" and ranks.rank not in joint.leaders:
        incident = _read_only(failure, location, incident)
    best = incident.causes[0].proven if incident.causes else False
    if found_alone and not best:
        return Joined(found)  # all ranks together found no more than this one alone
    return Joined(replace(found, incident=incident, worth_a_bundle=True), together=True)


def _lead(
    session: Session, failure: Failure, location: Location, incident: Incident, observation: Observation
) -> Incident:
    """Ask the rules, and let all ranks run what they want to try. Ends for the others, whatever happens."""
    from nantrap.causes import Case, explain_case

    leader = Leader(failure, session.ranks, _laboratory(session, failure, incident))
    # outside the runs of all ranks nothing may wait for them
    own = replace(failure, quiet=session.alone.running, crew=leader)
    try:
        seconds = session.policy.diagnosis.seconds
        location = replace(location, samples=find_samples(own, seconds=seconds / 3))
        if location.samples.note:
            location = location.noting(location.samples.note)
        words = incident.notes
        incident = _placed(session, observation, location)
        incident = replace(incident, notes=tuple(dict.fromkeys((*incident.notes, *words))))
        return with_explanation(incident, explain_case(Case(own, location, incident), seconds=seconds))
    except RankLostError:
        raise
    except Exception as error:  # a diagnosis is worth less than the run
        note = f"the diagnosis failed with {type(error).__name__}: {error}"
        return replace(incident, notes=(*incident.notes, note))
    finally:
        leader.end()


def _placed(session: Session, observation: Observation, location: Location) -> Incident:
    """The incident as it was observed, with the place where it began."""
    incident = with_location(incident_of(session, observation), location)
    return with_run_facts(session, incident, observation)


def _laboratory(session: Session, failure: Failure, incident: Incident) -> Laboratory:
    """Runs earlier steps of this rank when another one asks for it."""
    from nantrap.causes import Case
    from nantrap.causes.trials import Laboratory

    case = Case(failure, Location(phase=failure.symptom), incident)
    return Laboratory(case, seconds=session.policy.diagnosis.seconds)


def _read_only(failure: Failure, location: Location, incident: Incident) -> Incident:
    """No trials: the rules read what was recorded."""
    from nantrap.causes import Case, explain_case

    found = explain_case(Case(replace(failure, forward=None), location, incident), seconds=0.0)
    return replace(incident, causes=tuple(cause for cause in found.causes if cause.slug != "unknown"))


def explore_graph(session: Session, observation: Observation, found: Diagnosed, words: str) -> Diagnosed:
    """What the graph of the failed pass and this rank's own shards tell: nothing is run again."""
    incident = found.incident
    evidence = observation.micro.evidence
    if isinstance(evidence, GraphEvidence):
        try:
            location = evidence_location(evidence, failure_of(session, observation))
            notes = (each.partition("; guard.attempt")[0] for each in location.notes)  # it would not help
            location = replace(location, notes=tuple(notes))
            incident = with_run_facts(session, with_location(incident, location), observation)
        except Exception as error:  # a diagnosis is worth less than the run
            incident = replace(incident, notes=(*incident.notes, f"the graph could not be read: {error}"))
    incident = replace(incident, notes=(*incident.notes, words))
    return replace(found, incident=incident, worth_a_bundle=True)
