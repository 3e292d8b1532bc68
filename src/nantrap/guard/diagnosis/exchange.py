"""After a failure the ranks exchange what they found; those on which nothing began take it over.

So every rank's journal, message and summary name the same rank, place and cause, and the first rank, which prints, can
refer to the folder that the guilty rank writes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from nantrap.guard.diagnosed import Diagnosed
from nantrap.guard.diagnosis.completing import began_elsewhere
from nantrap.guard.judge import Verdict
from nantrap.guard.ranks.ranks import Ranks
from nantrap.incident import Incident
from nantrap.record.bundle import place_of_bundle
from nantrap.report.diagnostics import what

_MOST_OTHERS = 4


class RankReport(NamedTuple):
    """What one rank sends to the others.

    Attributes:
        found: it knows where the failure began, and that was here.
        holds: its own shards of the gradients are non-finite. Gradients that were averaged tell nothing.
        incident: its incident as plain data, if it may be the guilty rank.
    """

    found: bool
    holds: bool
    incident: dict[str, Any] | None


def exchange_incidents(diagnosed: Diagnosed, verdict: Verdict, ranks: Ranks, *, writes: bool) -> Diagnosed:
    """Every rank sends what it found. Returns what this rank says in agreement with the others. Each rank calls it.

    Args:
        diagnosed: what this rank found.
        verdict: what the ranks found when the step failed.
        ranks: all of them, which are here.
        writes: whether incidents are written to disk.
    """
    reports = ranks.share(_report(diagnosed, verdict, ranks, writes=writes))
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
        return verdict.bad_ranks, bool(verdict.bad_ranks)
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


def _report(diagnosed: Diagnosed, verdict: Verdict, ranks: Ranks, *, writes: bool) -> RankReport:
    """What this rank sends to the others about a bad step: whether it found the place, and its incident if they need
    it.
    """
    own = diagnosed.incident
    local = ranks.rank in verdict.bad_ranks
    found = local and (own.op is not None or own.module is not None)
    holds = local and not ranks.replicated and any(finding.kind == "gradient" for finding in own.findings)
    if not (found or holds or (local and not verdict.contested)):
        return RankReport(found, holds, None)
    place = own.bundle
    if writes and diagnosed.worth_a_bundle and ranks.run_dir is not None:
        place = os.fspath(place_of_bundle(ranks.run_dir, own))
    return RankReport(found, holds, replace(own, bundle=place, notes=(*own.notes, *diagnosed.notes)).to_dict())
