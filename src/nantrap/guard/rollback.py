"""The second rung: the whole state back to an anchor, or to a checkpoint of the store, with lower rates.

Every state is gone back to once. A run that diverges from it again has diverged twice at that place, so the next
rollback takes an older state: an older anchor, then the store's checkpoints from the newest to the oldest. The data
are not rewound: the window that led here is behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap.guard.rates import current_rates

if TYPE_CHECKING:
    from nantrap.guard.anchors import Anchor
    from nantrap.guard.guard import Guard


def no_way_back(guard: Guard) -> str:
    """Why a rollback is out of the question, or an empty string."""
    if _untried(guard) or guard._keeper.candidates():
        return ""
    if guard.tally.rollbacks:
        return "there is no older state to go back to that was not tried already"
    return "there is no older state to go back to"


def roll_back(guard: Guard) -> tuple[bool, str]:
    """Go back. Returns whether it was possible, and what was done, in words."""
    anchors, keeper = guard._anchors, guard._keeper
    factor = anchors.factor * guard.policy.lr_backoff
    untried = _untried(guard)
    # all ranks hold the same anchors, unless memory ran short on one of them: then none uses them
    if untried and not guard._agreement.decide(origin=False).bad:
        anchor = untried[0]
        anchor.rollbacks += 1
        anchors.restore(anchor)
        if guard.policy.rollback_rng == "restore" and anchor.rng is not None:
            anchor.rng.restore()
        step, since, source = anchor.step, anchor.factor, ""
    else:
        if not untried:
            guard._agreement.decide(origin=True)
        restored = keeper.restore()
        if restored is None:
            return False, "; no older state could be restored"
        loaded, since = restored
        step, source = loaded.step, f" from {loaded.path.name}"
    keeper.set_factor(factor, since=since)
    keeper.lowered(factor)
    keeper.tried(step)
    anchors.forget_after(step if not source else -1, now=guard._step + 1)
    guard._buffers.adopt()
    guard.tally.rollbacks += 1
    rates = ", ".join(f"{rate:.4g}" for rate in current_rates(guard.optimizer)[:3])
    return True, f"; state of step {step:,}{source}, lr now {rates}"


def _untried(guard: Guard) -> list[Anchor]:
    return [anchor for anchor in guard._anchors.candidates() if not anchor.rollbacks]
