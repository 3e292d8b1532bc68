"""From what was read to what is done with the step. Pure: no torch, nothing is changed, tested as a table of cases."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nantrap.guard.policy import Policy


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
