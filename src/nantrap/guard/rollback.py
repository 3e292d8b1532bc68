"""The second rung: the whole state back to an anchor, with lower rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap.guard.rates import current_rates, scale_rates

if TYPE_CHECKING:
    from nantrap.guard.guard import Guard


def no_way_back(guard: Guard) -> str:
    """Why a rollback is out of the question, or an empty string."""
    return "" if guard._anchors.candidates() else "there is no older state to go back to"


def roll_back(guard: Guard) -> str:
    """Go back; returns what was done, in words. An anchor that did not help before is tried last."""
    anchors = guard._anchors
    anchor = min(anchors.candidates(), key=lambda candidate: candidate.rollbacks)
    anchor.rollbacks += 1
    anchors.restore(anchor)
    scale_rates(guard.optimizer, guard.scheduler, guard.policy.lr_backoff)
    anchors.forget_after(anchor.step)
    guard._buffers.adopt()
    guard.tally.rollbacks += 1
    rates = ", ".join(f"{rate:.4g}" for rate in current_rates(guard.optimizer)[:3])
    return f"; state of step {anchor.step:,}, lr now {rates}"
