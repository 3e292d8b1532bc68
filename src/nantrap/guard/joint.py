"""A failed step that all ranks run again at the same time, each its own part.

Models that communicate with other ranks while they run (sharded weights, synchronised statistics, a loss that gathers
features) cannot be run again by the guilty rank alone. Right after a failure every rank is at the same place in the
program, so the ranks can do it together, if each of them is able to.
"""

from __future__ import annotations

from dataclasses import dataclass

from nantrap.guard.ranks import Ranks
from nantrap.locate import FailedStep, Location
from nantrap.locate.location import location_of
from nantrap.locate.together import can_run_together, replay_together


@dataclass(frozen=True, slots=True)
class Joint:
    """What a common replay showed on this rank.

    Attributes:
        location: where it began, if it began on this rank.
        words: what was done, or why it was not.
    """

    location: Location | None
    words: str


def run_jointly(failed: FailedStep, ranks: Ranks, *, wanted: bool) -> Joint | None:
    """Run the step again on all ranks, if any of them wants it and every one can. Each rank calls it.

    Args:
        failed: this rank's part of the step.
        ranks: the ranks, which are all here.
        wanted: whether this rank needs it.

    Returns:
        What it showed; `None` if no rank needs it.
    """
    said = ranks.share((wanted, can_run_together(failed)))
    if not any(needed for needed, _ in said.values()):
        return None
    for rank, (_, reason) in said.items():
        if reason:
            return Joint(None, f"not run again: all ranks would have to run it at once, and on rank {rank} {reason}")
    replay, trouble = replay_together(failed)
    if trouble:
        return Joint(None, f"run again by all ranks together; the trace on this rank ended early: {trouble}")
    if replay.origin is None:
        return Joint(None, "run again by all ranks together, and nothing began on this rank")
    words = "run again by all ranks together; trials are run by one rank alone, so no cause was tried"
    return Joint(location_of(replay, fallback=failed.symptom), words)
