"""A failed step that all ranks run again at the same time, each its own part.

Models that communicate with other ranks while they run (sharded weights, synchronised statistics, a loss that gathers
features) cannot be run again by the guilty rank alone, and neither can earlier steps whose gradients were averaged.
Right after a failure every rank is at the same place in the program, so the ranks can do it together, if each of them
is able to.

First all ranks run the step under a trace. Then each rank on which it began leads in turn: it asks its rules, and for
each run that they want it describes to the others in plain data what is changed (`causes.described`). All ranks run
their parts in lockstep, and a run is finite only if it is finite on all of them. A rank that fails ends the run on all
ranks, and no rank is left waiting.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nantrap.errors import RankLostError
from nantrap.guard.ranks.ranks import Ranks
from nantrap.locate import Failure, Location
from nantrap.locate.failure import Part
from nantrap.locate.location import location_of
from nantrap.locate.replay.replay import forward_and_backward
from nantrap.locate.replay.together import (
    Lockstep,
    can_end_early,
    can_run_together,
    compute_again_together,
    replay_together,
    resharded,
)

if TYPE_CHECKING:
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
    """

    failure: Failure
    location: Location | None
    words: str
    leaders: tuple[int, ...] = ()


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
        return Joint(failed, None, f"run again by all ranks together, and nothing began {where}", chosen)
    words = "run again by all ranks together"
    if not chosen and not failed.repeatable:
        words += "; no cause was tried, since the loss could not be computed again on every rank; guard.attempt can"
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
    """

    def __init__(self, failed: Failure, ranks: Ranks, laboratory: Laboratory) -> None:
        self._failed = failed
        self._ranks = ranks
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
        self._announce(("step", described, seed))
        try:
            return _in_lockstep(self._ranks, lambda: _part(self._failed, around, batch=batch, seed=seed))
        except LookupError as error:
            if batch is not None:  # a loss that gathers features takes batches of one size only
                self._whole = str(error)
            raise

    def steps(self, since: int, rates: Mapping[int, tuple[float, ...]]) -> Part:
        """The steps since an older state by all ranks, with these learning rates."""
        self._announce(("steps", since, dict(rates)))
        return _in_lockstep(self._ranks, lambda: _steps(self._failed, self._ranks, self._laboratory, since, rates))

    def end(self) -> None:
        """No more runs: the other ranks continue."""
        self._ranks.share(None)

    def _announce(self, told: tuple[Any, ...]) -> None:
        if not self._left:
            raise LookupError("the budget for runs by all ranks was used up")
        self._left -= 1
        self._ranks.share(told)


def follow(leader: int, failed: Failure, ranks: Ranks, laboratory: Laboratory) -> None:
    """Run this rank's part of whatever the leader asks for, until it has no more questions."""
    from nantrap.causes.described import change_of

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
