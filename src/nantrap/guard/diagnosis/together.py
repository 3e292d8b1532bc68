"""A diagnosis by all ranks together: each of them runs its part of the step again, and tries the same causes.

Models that communicate with other ranks while they run (sharded weights, synchronised statistics, a loss that gathers
features) cannot be run again by the guilty rank alone, and neither can earlier steps whose gradients were averaged.
Right after a failure every rank is at the same place in the program, so the ranks can do it together, if each of them
is able to. Every rank calls these functions at the same time.

First all ranks run the step under a trace. Then each rank on which it began leads in turn: it asks its rules, and for
each run that they want it describes to the others in plain data what is changed (`causes.changes`). All ranks run
their parts in lockstep, and a run is finite only if it is finite on all of them. A rank that fails ends the run on all
ranks, and no rank is left waiting.

At the end they exchange what they found (`exchange_incidents`); those on which nothing began take it over. So every
rank's journal, message and summary name the same rank, place and cause, and the first rank, which prints, can refer to
the folder that the guilty rank writes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from nantrap.errors import RankLostError
from nantrap.guard.diagnosis.describe import (
    Observation,
    began_elsewhere,
    budget_of,
    failure_of,
    incident_of,
    with_explanation,
    with_location,
    with_run_facts,
)
from nantrap.guard.judge import Verdict
from nantrap.guard.ranks.ranks import Alone, Ranks
from nantrap.guard.session import Session
from nantrap.guard.window import Diagnosed
from nantrap.incident import Incident
from nantrap.incident.wording import failed_in_words
from nantrap.locate import Failure, Location
from nantrap.locate.failure import Part
from nantrap.locate.location import evidence_location, location_of, weight_location
from nantrap.locate.replay.replay import forward_and_backward
from nantrap.locate.replay.samples import find_samples
from nantrap.locate.replay.together import (
    Lockstep,
    can_end_early,
    can_run_together,
    compute_again_together,
    replay_together,
    resharded,
)
from nantrap.locate.twoline.autopsy import GraphEvidence
from nantrap.record.bundle import place_of_bundle
from nantrap.report.diagnostics import what

if TYPE_CHECKING:  # the rules are many: imported by the first failure
    from nantrap.causes.trials import Laboratory

MOST_RUNS = 48
"""How often one leader may let all ranks run the step."""
MOST_LEADERS = 2


@dataclass(frozen=True, slots=True)
class Joint:
    """What a common replay showed on this rank.

    Attributes:
        failure: this rank's part of the step, as it is known now.
        location: where it began, if it began on this rank.
        words: what was done, or why it was not.
        leaders: the ranks that may try causes with the others, one after the other.
        ran: this rank's part was run again, under a trace that saw all of it.
    """

    failure: Failure
    location: Location | None
    words: str
    leaders: tuple[int, ...] = ()
    ran: bool = False


def run_jointly(failed: Failure, ranks: Ranks, *, wanted: bool) -> Joint | None:
    """Run the step again on all ranks, if any of them wants it and every one can. Each rank calls it.

    Args:
        failed: this rank's part of the step.
        ranks: the ranks, which are all here.
        wanted: whether this rank needs it.

    Returns:
        What it showed; `None` if no rank needs it.
    """
    said = ranks.share((wanted, can_run_together(failed), failed.repeatable and can_end_early(failed)))
    if not any(needed for needed, _, _ in said.values()):
        return None
    for rank, (_, reason, _) in said.items():
        if reason:
            words = f"not run again: all ranks would have to run it at once, and on rank {rank} {reason}"
            return Joint(failed, None, words)
    all_can_try = all(can_try for *_, can_try in said.values())
    again = None if all_can_try else _computed_again(failed, ranks)
    replay, trouble = replay_together(again or failed, ranks.same)
    if again is not None and not all(ranks.share(replay.alike is not False and not trouble).values()):
        again = None
        replay, trouble = replay_together(failed, ranks.same)
    failed = again or failed
    location = (
        None if trouble or replay.origin is None else location_of(replay, fallback=failed.symptom, batch=failed.batch)
    )
    if location is None and not trouble:
        location = weight_location(failed)
    place = None
    if location is not None and wanted:
        line = (location.source.file, location.source.line) if location.source is not None else None
        place = (location.phase, location.op, location.module, line)
    places = ranks.share((place, bool(trouble)))
    leaders: dict[Any, int] = {}
    if (again is not None or all_can_try) and not any(broken for _, broken in places.values()):
        for rank, (where, _) in places.items():
            if where is not None and len(leaders) < MOST_LEADERS:
                leaders.setdefault(where, rank)
    chosen = tuple(leaders.values())
    if trouble:
        words = f"run again by all ranks together; the trace on this rank ended early: {trouble}"
        return Joint(failed, None, words)
    if location is None:
        where = "on this rank" if failed.repeatable else "in the calls of the model on this rank"
        words = f"run again by all ranks together, and nothing began {where}"
        return Joint(failed, None, words, chosen, ran=True)
    words = "run again by all ranks together"
    if not chosen and not failed.repeatable:
        words += "; no cause was tried, since the loss could not be computed again on every rank"
        by_engine = any(hasattr(parameter, "ds_tensor") for parameter in failed.root.parameters())
        words += "" if by_engine else "; guard.attempt can"
    elif not chosen:
        words += "; no cause was tried, since FSDP before torch 2.13 cannot be reset after a trial that ends early"
    elif again is not None and ranks.rank in chosen:
        words += "; the loss was computed again from its source, without side effects"
    elif ranks.rank not in chosen:
        who = " and ".join(map(str, chosen))
        words += f"; causes were tried by rank {who}"
    return Joint(failed, location, words, chosen)


def _computed_again(failed: Failure, ranks: Ranks) -> Failure | None:
    """In the two-line form: the step as it can be run again; `None` if a rank cannot compute its loss again from its
    source. Each rank calls it."""
    if not all(ranks.share(can_end_early(failed)).values()):
        return None
    again = compute_again_together(failed, ranks.same)
    return again if all(ranks.share(again.repeatable).values()) else None


class Leader:
    """Lets all ranks run the step with one thing changed. Holds how often it may still do so.

    Args:
        failed: this rank's part of the step; it may communicate.
        ranks: the ranks; each of the others calls `follow`.
        alone: refuses what waits for the others, except in these runs.
    """

    def __init__(self, failed: Failure, ranks: Ranks, laboratory: Laboratory, alone: Alone) -> None:
        self._failed = failed
        self._ranks = ranks
        self._alone = alone
        self._laboratory = laboratory
        self._left = MOST_RUNS
        self._whole = ""

    def step(
        self,
        described: tuple[Any, ...],
        around: contextlib.AbstractContextManager[Any] | None,
        *,
        batch: Any = None,
        seed: float | None = None,
    ) -> Part:
        """The step once more by all ranks, with a change; see `locate.failure.Crew`."""
        if batch is not None and self._whole:
            raise LookupError(self._whole)
        try:
            return self._run(("step", described, seed), lambda: _part(self._failed, around, batch=batch, seed=seed))
        except LookupError as error:
            if batch is not None:  # a loss that gathers features takes batches of one size only
                self._whole = str(error)
            raise

    def steps(self, since: int, rates: Mapping[int, tuple[float, ...]]) -> Part:
        """The steps since an older state by all ranks, with these learning rates."""
        return self._run(
            ("steps", since, dict(rates)),
            lambda: _steps(self._failed, self._ranks, self._laboratory, since, rates),
        )

    def end(self) -> None:
        """No more runs: the other ranks continue."""
        self._ranks.share(None)

    def _run(self, told: tuple[Any, ...], run: Callable[[], Part]) -> Part:
        """Tell the others what is run, and run this rank's part of it with them."""
        if not self._left:
            raise LookupError("the budget for runs by all ranks was used up")
        self._left -= 1
        with self._alone.with_others():
            self._ranks.share(told)
            return _in_lockstep(self._ranks, run)


def follow(leader: int, failed: Failure, ranks: Ranks, laboratory: Laboratory) -> None:
    """Run this rank's part of whatever the leader asks for, until it has no more questions."""
    from nantrap.causes.changes import change_of

    while (told := ranks.share(None)[leader]) is not None:
        with contextlib.suppress(LookupError):  # the leader gets the reason, and decides
            if told[0] == "steps":
                _, since, rates = told
                _in_lockstep(ranks, lambda: _steps(failed, ranks, laboratory, since, rates))  # noqa: B023
            else:
                _, described, seed = told
                _in_lockstep(ranks, lambda: _part(failed, change_of(described), seed=seed))  # noqa: B023


def _part(
    failed: Failure,
    around: contextlib.AbstractContextManager[Any] | None,
    *,
    batch: Any = None,
    seed: float | None = None,
) -> Part:
    """Forward and backward of the failed step on this rank, with what is changed around it."""
    with failed.rewound(), resharded(failed), around or contextlib.nullcontext():
        given = failed.batch if batch is None else batch[0]
        return forward_and_backward(failed, given, seed=seed, stop_early=False)


def _steps(
    failed: Failure, ranks: Ranks, laboratory: Laboratory, since: int, rates: Mapping[int, tuple[float, ...]]
) -> Part:
    """The steps since an older state, made again with other learning rates, gradients averaged as in training."""

    def average() -> None:
        if failed.averaged:
            ranks.average([p.grad for p in failed.parameters.values() if p.grad is not None])

    with failed.rewound(), resharded(failed):
        return laboratory.drive(since, rates, average=average)


def _in_lockstep(ranks: Ranks, run: Callable[[], Part]) -> Part:
    """Run this rank's part together with the others. Raises `LookupError` on every rank if one of them failed."""
    lockstep = Lockstep(ranks.same)
    part: Part | None = None
    words = ""
    try:
        with lockstep:
            part = run()
    except RankLostError:
        raise
    except Exception as error:
        lines = str(error).splitlines()
        words = f"{type(error).__name__}: {lines[0] if lines else ''}"
    out_of_step = lockstep.broken
    lockstep.end(failed=part is None)
    said = ranks.share((part, words, out_of_step))
    failures = {rank: (words, other) for rank, (given, words, other) in said.items() if given is None}
    if failures:
        # the first one that failed by itself, not because another one did
        rank = next((rank for rank, (_, other) in failures.items() if not other), next(iter(failures)))
        raise LookupError(f"rank {rank} could not run its part: {failures[rank][0]}")
    assert part is not None
    bad = dict.fromkeys(name for given, _, _ in said.values() for name in given.bad)
    return Part(all(given.finite for given, _, _ in said.values()), part.loss, tuple(bad))


class Joined(NamedTuple):
    """What is known after all ranks ran the step again.

    Attributes:
        diagnosed: the incident of this rank.
        together: it holds what the ranks found together.
        nothing_began: all ranks ran the step again, and nothing began on this one.
    """

    diagnosed: Diagnosed
    together: bool = False
    nothing_began: bool = False


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
        if found_alone:
            return Joined(found)
        return Joined(explore_graph(session, observation, found, joint.words), nothing_began=joint.ran)
    if policy.diagnose == "full" and ranks.rank not in joint.leaders:
        with session.alone.reading():
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

    alone = session.alone
    leader = Leader(failure, session.ranks, _laboratory(session, failure, incident), alone)
    # outside the runs of all ranks nothing may wait for them
    own = replace(failure, quiet=alone.running, crew=leader)
    try:
        with alone.reading():
            budget = budget_of(session)
            location = replace(location, samples=find_samples(own, budget=budget.part(1 / 3)))
            if location.samples.note:
                location = location.noting(location.samples.note)
            words = incident.notes
            incident = _placed(session, observation, location)
            incident = replace(incident, notes=tuple(dict.fromkeys((*incident.notes, *words))))
            return with_explanation(incident, explain_case(Case(own, location, incident), budget=budget))
    except RankLostError:
        raise
    except Exception as error:  # a diagnosis is worth less than the run
        note = failed_in_words("the diagnosis", error)
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
    return Laboratory(case, budget=budget_of(session))


def _read_only(failure: Failure, location: Location, incident: Incident) -> Incident:
    """No trials: the rules read what was recorded."""
    from nantrap.causes import Case, explain_case

    found = explain_case(Case(replace(failure, forward=None), location, incident))
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


_MOST_OTHERS = 4


class RankReport(NamedTuple):
    """What one rank sends to the others.

    Attributes:
        found: it knows where the failure began, and that was here.
        holds: its own shards of the gradients are non-finite. Gradients that were averaged tell nothing.
        nothing_began: it ran its part again with the others, and what was bad came from another rank.
        incident: its incident as plain data, if it may be the guilty rank.
    """

    found: bool
    holds: bool
    nothing_began: bool
    incident: dict[str, Any] | None


def exchange_incidents(joined: Joined, verdict: Verdict, ranks: Ranks, *, writes: bool) -> Diagnosed:
    """Every rank sends what it found. Returns what this rank says in agreement with the others. Each rank calls it.

    Args:
        joined: what this rank found.
        verdict: what the ranks found when the step failed.
        ranks: all of them, which are here.
        writes: whether incidents are written to disk.
    """
    diagnosed = joined.diagnosed
    reports = ranks.share(_report(joined, verdict, ranks, writes=writes))
    bad_ranks, certain = guilty_ranks(reports, verdict)
    origin = bad_ranks[0] if bad_ranks and certain else None
    own = diagnosed.incident
    if origin is not None and ranks.rank not in bad_ranks:
        sent = reports[origin].incident
        guilty = own if sent is None else Incident.from_dict(sent)
        notes = guilty.notes if sent is not None else (began_elsewhere(origin),)
        # one rank may have made more steps than another, so each keeps its own number
        own = replace(guilty, step=own.step, rank=own.rank, notes=notes, epoch=own.epoch, batch=own.batch)
        diagnosed = replace(diagnosed, worth_a_bundle=False, material=None, notes=())
    else:
        others = {rank: reports[rank].incident for rank in bad_ranks if rank != ranks.rank}
        incidents = {rank: Incident.from_dict(sent) for rank, sent in others.items() if sent is not None}
        diagnosed = diagnosed.noting(*other_causes(own, incidents))
    return diagnosed.with_incident(replace(own, origin_rank=origin, bad_ranks=bad_ranks))


def guilty_ranks(reports: Mapping[int, RankReport], verdict: Verdict) -> tuple[tuple[int, ...], bool]:
    """The ranks where it began, and whether that is certain.

    Averaged gradients are bad on every rank. Then each rank has run its own part again, and those that failed are
    guilty. Where none did, a rank whose own shards are bad while those of others are not is: nothing has spread.
    """
    if not verdict.contested:
        # weights that are gathered from all ranks bring the bad values of one to all of them
        began = tuple(rank for rank in verdict.bad_ranks if not reports[rank].nothing_began)
        return began or verdict.bad_ranks, bool(verdict.bad_ranks)
    found = tuple(rank for rank, report in reports.items() if report.found)
    holding = tuple(rank for rank, report in reports.items() if report.holds)
    if found:
        return found, True
    if holding and len(holding) < len(reports):
        return holding, True
    return verdict.bad_ranks, False


def other_causes(own: Incident, others: Mapping[int, Incident]) -> list[str]:
    """Notes on ranks that failed in the same step for another reason."""
    different = {rank: other for rank, other in others.items() if _place(other) != _place(own)}
    notes = [f"also bad on rank {rank}, {what(other)}" for rank, other in list(different.items())[:_MOST_OTHERS]]
    more = len(different) - len(notes)
    return [*notes, f"and on {more:,} more ranks"] if more > 0 else notes


def _place(incident: Incident) -> tuple[object, ...]:
    cause = incident.causes[0].slug if incident.causes else None
    return cause, incident.phase, incident.module, incident.op


def _report(joined: Joined, verdict: Verdict, ranks: Ranks, *, writes: bool) -> RankReport:
    """What this rank sends to the others about a bad step: whether it found the place, and its incident if they need
    it.
    """
    diagnosed, nothing_began = joined.diagnosed, joined.nothing_began
    own = diagnosed.incident
    local = ranks.rank in verdict.bad_ranks
    found = local and (own.op is not None or own.module is not None)
    holds = local and not ranks.replicated and any(finding.kind == "gradient" for finding in own.findings)
    if not (found or holds or (local and not verdict.contested)):
        return RankReport(found, holds, nothing_began, None)
    place = own.bundle
    if writes and diagnosed.worth_a_bundle and ranks.run_dir is not None:
        place = os.fspath(place_of_bundle(ranks.run_dir, own))
    told = replace(own, bundle=place, notes=(*own.notes, *diagnosed.notes)).to_dict()
    return RankReport(found, holds, nothing_began, told)
