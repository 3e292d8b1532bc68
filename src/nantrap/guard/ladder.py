"""The ladder: skip, then roll back, then stop. Counts the incidents in a row and the recent incidents."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from nantrap.guard.policy import Policy
from nantrap.incident import Action


class Ladder:
    """Decides the action for an incident. Holds the incidents in a row and the recent incidents."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._recent: deque[int] = deque()
        self.in_a_row = 0
        self.rollbacks = 0
        self._only_harmless = False

    def is_at_the_end(self, step: int) -> bool:
        """Whether an incident at `step` would no longer be skipped, but rolled back or stopped."""
        policy = self._policy
        if policy.on_incident != "skip" or policy.then == "stop":
            return False
        if self.in_a_row + 1 > policy.max_consecutive_skips:
            return True
        recent = sum(1 for each in self._recent if each > step - policy.skips.window)
        return policy.skips.in_window is not None and recent + 1 > policy.skips.in_window

    def decide(
        self,
        step: int,
        *,
        harmless: bool = False,
        spoiled: str = "",
        no_way_back: Callable[[], str] = lambda: "",
    ) -> tuple[Action, str]:
        """The action for an incident at `step`, and why.

        Args:
            step: number of the step.
            harmless: only the loss was bad, its gradients were finite: skipped, never rolled back.
            spoiled: `the weights are`, `the optimizer's state is` or `buffer scale is`, if those are non-finite and an
                older state is not: every further step would fail as well. Rolled back immediately, also where the
                policy stops after skips.
            no_way_back: returns why a rollback is impossible, or ""; called only when one is due.
        """
        policy = self._policy
        if policy.on_incident == "observe":
            return Action.APPLY, "the policy only observes"
        if policy.on_incident == "raise":
            return Action.STOP, "the policy stops at the first incident"
        self.in_a_row += 1
        self._only_harmless = harmless and (self._only_harmless or self.in_a_row == 1)
        if harmless and (self._only_harmless or not self._too_many()):
            return self._decide_harmless()
        self._recent.append(step)
        while self._recent and self._recent[0] <= step - policy.skips.window:
            self._recent.popleft()
        reason = self._too_many()
        if self.rollbacks >= policy.max_rollbacks:
            spoiled = ""
        if spoiled and not reason:
            reason = f"{spoiled} non-finite, which skipping does not repair"
        if not reason:
            return Action.SKIP, f"{self.in_a_row} of {policy.max_consecutive_skips} in a row"
        if policy.then == "stop" and not spoiled:
            return Action.STOP, reason
        if self.rollbacks >= policy.max_rollbacks:
            used = f"{self.rollbacks} rollback{'' if self.rollbacks == 1 else 's'} {_is(self.rollbacks)} used up"
            return Action.STOP, f"{reason}, and {used}"
        if blocked := no_way_back():
            return Action.STOP, f"{reason}, and {blocked}"
        self.rollbacks += 1
        self.in_a_row = 0
        self._recent.clear()
        return Action.ROLLBACK, f"{reason}; rollback {self.rollbacks} of {policy.max_rollbacks}"

    def _too_many(self) -> str:
        """Why this incident is one too many to be skipped, or an empty string."""
        policy = self._policy
        allowed = policy.max_consecutive_skips
        if self.in_a_row > allowed:
            in_words = f"{self.in_a_row} incidents in a row, {allowed} {_is(allowed)} allowed"
            return in_words if allowed else "no skip is allowed"
        most = policy.skips.in_window
        if most is not None and len(self._recent) > most:
            return f"{len(self._recent)} incidents in {policy.skips.window} steps, {most} {_is(most)} allowed"
        return ""

    def applied(self) -> None:
        """A step was applied: the count of incidents in a row starts again."""
        self.in_a_row = 0

    def _decide_harmless(self) -> tuple[Action, str]:
        """A few batches without a label are normal. The limit of skips in a row holds, and then the run is stopped:
        the state is as good as before, so a rollback would repair nothing."""
        if reason := self._too_many():
            return Action.STOP, f"{reason}; the gradients were finite, so a rollback would repair nothing"
        return Action.SKIP, f"{self.in_a_row} of {self._policy.max_consecutive_skips} in a row"


def _is(number: int) -> str:
    return "is" if number == 1 else "are"
