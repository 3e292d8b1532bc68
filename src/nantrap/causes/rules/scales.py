"""NT1xx: a batch in other units than the ones before it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nantrap.causes.claim import Claim
from nantrap.causes.extremes import is_sentinel, largest_input, out_of_range
from nantrap.causes.facts import EXPONENTIALS, IN_LOG_SPACE
from nantrap.causes.registry import rule
from nantrap.causes.usual import in_usual_range, unusual_inputs

if TYPE_CHECKING:
    from nantrap.causes.case import Case


@rule("input_out_of_scale")
def input_out_of_scale(case: Case) -> Claim | None:
    """A batch or target lies in another scale than the others."""
    found = largest_input(case)
    if found is None:
        return _in_other_units(case)
    if is_sentinel(found.tensor, found.value):
        return None
    return out_of_range(
        case,
        found,
        f"the batch is out of scale: {found.name} reaches {found.value:.3g}",
        "check the range where the data are read, and scale or drop what lies outside it",
    )


def _in_other_units(case: Case) -> Claim | None:
    """A batch that no network would find absurd, and that is far outside the batches before it.

    Where an exponential overflowed there are two explanations: code that passes an unbounded number to exp, and a batch
    in another unit. Three things decide. Code that has a form which is exact and does not overflow is the cause, if the
    step is finite with it. Otherwise it is the batch, if it is too far outside to be an unusual sample, and the step is
    finite with the batch in its usual range.
    """
    if case.made != "inf" or case.half or case.phase not in ("forward", "backward") or case.failure.norm_overflowed:
        return None
    unusual = unusual_inputs(case)
    if not unusual or not _left_the_range(case):
        return None
    furthest = unusual[0]
    claim = Claim(
        "hint",
        f"the batch is in another scale than those before it: {furthest.name} reaches {furthest.value:.4g}",
        (f"{furthest.words}: {furthest.factor:.3g} times",),
        help=f"check the range of {furthest.name} where the data are read, and scale or drop what lies outside it",
    )
    if not case.failure.repeatable or (case.op in EXPONENTIALS and not furthest.in_other_units):
        return claim
    if case.op in EXPONENTIALS and case.feeds_a_logarithm and case.lab.in_log_space(IN_LOG_SPACE).finite:
        return claim
    scaled = in_usual_range(case.failure.batch, unusual)
    trial = case.lab.with_batch("usual_range", "the batch brought to the range of those before it", scaled)
    if trial.finite is False:
        return None
    return replace(
        claim, has="tried", trial=trial, shows="with the batch in that range the step is finite", verifies=False
    )


def _left_the_range(case: Case) -> bool:
    """Whether the exact result is a number that the dtype cannot hold; at a pole (log 0, 1/0) it is no number."""
    if case.op in EXPONENTIALS:
        return True
    from nantrap.causes.reference import recomputed

    exact = recomputed(case, "float64")
    return exact is not None and bool(exact.isfinite().all())
