"""What is done with a step: every case of the verdict and the policy, without a model."""

from __future__ import annotations

import pytest

from nantrap import Policy
from nantrap.guard.judge import Flags, Kind, Verdict, combine, judge

BAD = Flags(origin=True, harmful=True)
SPREAD = Flags(symptom=True, harmful=True)


@pytest.mark.parametrize(
    ("verdict", "policy", "kind", "harmless", "spike"),
    [
        (Verdict(), Policy(), Kind.APPLY, False, False),
        (Verdict(careful=True), Policy(), Kind.APPLY, False, False),
        (Verdict(probing=True), Policy(), Kind.PROBE, False, False),
        (Verdict(probing=True), Policy.strict(), Kind.PROBE, False, False),
        (Verdict(spike=True), Policy(spikes="skip"), Kind.REFUSE, False, True),
        (Verdict(bad=True, harmful=True), Policy(), Kind.REFUSE, False, False),
        (Verdict(bad=True, harmful=False), Policy(), Kind.REFUSE, True, False),
        (Verdict(bad=True, harmful=True), Policy.strict(), Kind.REFUSE, False, False),
        (Verdict(bad=True, harmful=True), Policy.observe(), Kind.OBSERVE, False, False),
    ],
)
def test_what_is_done(verdict: Verdict, policy: Policy, kind: Kind, harmless: bool, spike: bool) -> None:
    decision = judge(verdict, policy)
    assert (decision.kind, decision.harmless, decision.spike) == (kind, harmless, spike)
    assert decision.verdict is verdict


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({0: Flags()}, Verdict()),
        ({0: Flags(), 1: Flags(careful=True)}, Verdict(careful=True)),
        ({0: Flags(), 1: BAD}, Verdict(bad=True, harmful=True, bad_ranks=(1,))),
        ({0: BAD, 1: BAD}, Verdict(bad=True, harmful=True, bad_ranks=(0, 1))),
        # averaging spreads a bad gradient to all ranks: the one with its own bad loss is named
        (
            {0: SPREAD, 1: Flags(origin=True, symptom=True, harmful=True)},
            Verdict(bad=True, harmful=True, bad_ranks=(1,)),
        ),
        (
            {2: SPREAD, 5: SPREAD},
            Verdict(bad=True, harmful=True, bad_ranks=(2, 5), contested=True, only_gradients=True),
        ),
        ({0: Flags(origin=True)}, Verdict(bad=True, bad_ranks=(0,))),
        # one rank's scaler searches its scale, another's step is bad: bad wins, on both
        ({0: Flags(probing=True), 1: BAD}, Verdict(bad=True, harmful=True, bad_ranks=(1,))),
        ({0: Flags(probing=True), 1: Flags()}, Verdict(probing=True)),
        ({0: Flags(), 1: Flags(spike=True)}, Verdict(spike=True, bad_ranks=(1,))),
        ({0: Flags(stop=True), 1: BAD}, Verdict(bad=True, harmful=True, stop=True, bad_ranks=(1,))),
    ],
)
def test_what_the_ranks_find_together(flags: dict[int, Flags], expected: Verdict) -> None:
    assert combine(flags) == expected


def test_the_rank_where_it_began() -> None:
    assert combine({0: Flags(), 3: BAD}).origin_rank == 3
    assert combine({0: SPREAD, 3: SPREAD}).origin_rank is None, "contested: only a replay can tell"
    assert Verdict().origin_rank is None
