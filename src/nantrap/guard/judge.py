"""What is decided about a step. Pure: no torch, nothing else is changed, tested as tables of cases.

`combine` and `judge` go from what the ranks have read to what is done with the step; the `Ladder` goes from an incident
to its action: skip, then roll back, then stop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from nantrap.guard.policy import Policy
from nantrap.incident import Action


class Kind(Enum):
    """What is done with a step."""

    APPLY = "apply"
    PROBE = "probe"
    """A GradScaler found an overflow while it searches its scale: it does what it would do without the guard."""
    OBSERVE = "observe"
    """The step is bad, and the policy only reports: it is applied unchanged."""
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Flags:
    """What one rank found in a step.

    Attributes:
        origin: its own loss, batch, buffers or update are bad.
        symptom: its gradients are, which may have come from another rank.
        harmful: gradients or buffers are bad, and not only the loss.
        careful: its update could create a non-finite value, so it must be possible to undo it.
        probing: its gradients overflowed while a GradScaler searches its scale.
        spike: its loss or gradient norm lies far outside the recent range, and the policy skips such steps.
        stop: it has no older state to return to, should the policy ask for a rollback now.
        signalled: it has put NaN into its own gradients, to tell the others of something else (see `averaged_flags`).
    """

    origin: bool = False
    symptom: bool = False
    harmful: bool = False
    careful: bool = False
    probing: bool = False
    spike: bool = False
    stop: bool = False
    signalled: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all ranks found together; the same on each of them.

    Attributes:
        bad: whether any rank found anything.
        harmful: whether gradients or buffers are bad on any rank, and not only a loss.
        careful: whether any rank must be able to undo its update; then all must.
        probing: whether the scaler of any rank searches its scale, and nothing else is wrong.
        spike: whether any rank saw a spike that is to be skipped.
        stop: whether any rank has no older state to return to.
        bad_ranks: the ranks where it began: those with a bad loss, batch or update of their own; if there are none,
            those with bad gradients. For a spike, the ranks that saw it.
        contested: only gradients are bad, on several ranks: averaging has spread what began on one of them.
        signalled: a rank has put NaN into the gradients, which must be taken out of them again.
        only_gradients: no rank found anything but gradients that are not finite.
    """

    bad: bool = False
    harmful: bool = False
    careful: bool = False
    probing: bool = False
    spike: bool = False
    stop: bool = False
    bad_ranks: tuple[int, ...] = ()
    contested: bool = False
    signalled: bool = False
    only_gradients: bool = False

    @property
    def origin_rank(self) -> int | None:
        """The first of the bad ranks; `None` while it is contested or nothing is bad."""
        return self.bad_ranks[0] if self.bad_ranks and not self.contested else None


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done with the step, and why.

    Attributes:
        kind: apply, probe, observe or refuse.
        verdict: what the ranks found.
        harmless: only a loss is bad, its gradients are finite: skipped, never rolled back.
        spike: the step is finite and refused because of a spike.
    """

    kind: Kind
    verdict: Verdict
    harmless: bool = False
    spike: bool = False


APPLY = Decision(Kind.APPLY, Verdict())
"""A healthy step in one process."""
APPLY_CAREFULLY = Decision(Kind.APPLY, Verdict(careful=True))
"""The same where the update cannot be proven finite beforehand."""


def combine(flags: dict[int, Flags]) -> Verdict:
    """The verdict of these ranks, by rank. One rank alone decides for itself."""
    origins = tuple(rank for rank, own in flags.items() if own.origin)
    symptoms = tuple(rank for rank, own in flags.items() if own.symptom)
    spikes = tuple(rank for rank, own in flags.items() if own.spike)
    found = origins or symptoms
    bad = bool(found)
    signalled = any(own.signalled for own in flags.values())
    return Verdict(
        bad=bad,
        # the NaN of a rank that signals is in all gradients: only the rank itself knows whether anything else is
        harmful=any(own.harmful for own in flags.values() if own.signalled or not signalled),
        careful=any(own.careful for own in flags.values()),
        probing=not bad and any(own.probing for own in flags.values()),
        spike=not bad and bool(spikes),
        stop=any(own.stop for own in flags.values()),
        bad_ranks=found or spikes,
        contested=len(found) > 1 and not origins,
        signalled=signalled,
        only_gradients=bool(symptoms) and not origins,
    )


def judge(verdict: Verdict, policy: Policy) -> Decision:
    """What is done with a step on which the ranks found this."""
    if verdict.bad:
        kind = Kind.OBSERVE if policy.on_incident == "observe" else Kind.REFUSE
        return Decision(kind, verdict, harmless=not verdict.harmful)
    if verdict.probing:
        return Decision(Kind.PROBE, verdict)
    if verdict.spike:
        return Decision(Kind.REFUSE, verdict, spike=True)
    return Decision(Kind.APPLY, verdict)


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
        same_value: bool = False,
        spoiled: str = "",
        no_way_back: Callable[[], str] = lambda: "",
    ) -> tuple[Action, str]:
        """The action for an incident at `step`, and why.

        Args:
            step: number of the step.
            harmless: only the loss was bad, its gradients were finite: skipped, never rolled back.
            same_value: the step was given the same bad value of the program as the one before it (one reward of a
                rollout from which many updates are made). In a row they count as one; the limit of the window holds.
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
        counts = harmless or not same_value or not self.in_a_row
        self.in_a_row += counts
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
            again = "" if counts else "given the same value as the step before, counted once; "
            return Action.SKIP, f"{again}{self.in_a_row} of {policy.max_consecutive_skips} in a row"
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
