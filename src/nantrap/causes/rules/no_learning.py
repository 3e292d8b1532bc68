"""NT5xx: a run that is finite and learns nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap.causes.claim import Claim
from nantrap.causes.registry import rule
from nantrap.thresholds import STILL_AT_A_FAILURE

if TYPE_CHECKING:
    from nantrap.causes.case import Case


@rule("dead_training")
def dead_training(case: Case) -> Claim | None:
    """Nothing is learned: the updates are exactly zero."""
    applied = case.run.history.applied()
    still = [record for record in applied[-STILL_AT_A_FAILURE:] if record.grad_norm == 0]
    if len(applied) < STILL_AT_A_FAILURE or len(still) < STILL_AT_A_FAILURE:
        return None
    first, count = applied[-1].step, 0
    for record in reversed(applied):
        if record.grad_norm != 0:
            break
        first, count = record.step, count + 1
    return Claim(
        "hint",
        f"nothing has been learned since step {first:,}: the gradient norm is exactly 0",
        (),
        history=(f"the gradient norm is exactly 0 in each of the last {count:,} steps",),
        help="look for a detach, a frozen layer or a term without a graph between the loss and the parameters",
    )
