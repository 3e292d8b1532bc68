"""The ladder: skip, roll back, stop. Counts what happened; never skips silently."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from nantrap.guard.policy import Policy
from nantrap.incident import Action


@dataclass(slots=True)
class Tally:
    """What a run did so far."""

    attempted: int = 0
    applied: int = 0
    incidents: int = 0
    dropped_micro_batches: int = 0
    scaler_probes: int = 0
    rollbacks: int = 0
    spikes: int = 0
    causes: Counter[str] = field(default_factory=Counter)


class Ladder:
    """Decides the rung for an incident. Holds the incidents in a row and the recent ones."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._recent: deque[int] = deque()
        self.in_a_row = 0
        self.rollbacks = 0

    def decide(self, step: int, *, harmless: bool, can_roll_back: bool) -> tuple[Action, str]:
        """The rung for an incident at `step`, and why. A harmless one (its gradients were finite) is only skipped."""
        policy = self._policy
        if policy.on_incident == "observe":
            return Action.APPLY, "the policy only observes"
        if policy.on_incident == "raise":
            return Action.STOP, "the policy stops at the first incident"
        if harmless:
            return Action.SKIP, "the gradients were finite: nothing to roll back"
        self.in_a_row += 1
        self._recent.append(step)
        while self._recent and self._recent[0] <= step - policy.window:
            self._recent.popleft()
        reason = ""
        if self.in_a_row > policy.max_consecutive_skips:
            reason = f"{self.in_a_row} incidents in a row, {policy.max_consecutive_skips} are allowed"
        elif policy.max_skips_in_window is not None and len(self._recent) > policy.max_skips_in_window:
            reason = f"{len(self._recent)} incidents in {policy.window} steps, {policy.max_skips_in_window} are allowed"
        if not reason:
            return Action.SKIP, f"{self.in_a_row} of {policy.max_consecutive_skips} in a row"
        if policy.then == "rollback" and can_roll_back and self.rollbacks < policy.max_rollbacks:
            self.rollbacks += 1
            self.in_a_row = 0
            self._recent.clear()
            return Action.ROLLBACK, f"{reason}; rollback {self.rollbacks} of {policy.max_rollbacks}"
        if policy.then == "rollback" and self.rollbacks >= policy.max_rollbacks:
            reason += f", and {self.rollbacks} rollbacks are used up"
        elif policy.then == "rollback":
            reason += ", and there is no older state to go back to"
        return Action.STOP, reason

    def applied(self) -> None:
        """A step was applied: the row ends."""
        self.in_a_row = 0
