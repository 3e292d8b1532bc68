"""Which ranks are guilty, by what each of them reports, and what is noted of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nantrap.guard.diagnosis.together import RankReport, guilty_ranks, other_causes
from nantrap.guard.judge import Verdict
from nantrap.incident import Cause, Incident

FOUND, HOLDS, NOTHING = (
    RankReport(True, False, False, {}),
    RankReport(False, True, False, {}),
    RankReport(False, False, False, None),
)
SPREAD = Verdict(bad=True, bad_ranks=(0, 1, 2), contested=True)


@pytest.mark.parametrize(
    ("reports", "verdict", "guilty"),
    [
        ((NOTHING, FOUND, NOTHING), SPREAD, ((1,), True)),
        ((FOUND, NOTHING, FOUND), SPREAD, ((0, 2), True)),
        ((NOTHING, NOTHING, HOLDS), SPREAD, ((2,), True)),
        ((HOLDS, FOUND, HOLDS), SPREAD, ((1,), True)),
        ((HOLDS, HOLDS, HOLDS), SPREAD, ((0, 1, 2), False)),
        ((NOTHING, NOTHING, NOTHING), SPREAD, ((0, 1, 2), False)),
        ((NOTHING, FOUND, NOTHING), Verdict(bad=True, bad_ranks=(1,)), ((1,), True)),
    ],
    ids=["one", "two", "a shard", "an origin before shards", "all shards", "nothing", "its own loss"],
)
def test_guilty_ranks(reports: tuple[RankReport, ...], verdict: Verdict, guilty: tuple[tuple[int, ...], bool]) -> None:
    assert guilty_ranks(dict(enumerate(reports)), verdict) == guilty


def test_other_causes_are_named_once_they_differ() -> None:
    own = Incident(step=4, phase="data", op="aten.mm", causes=(Cause("bad_input_data", summary="a NaN came in"),))
    log = Incident(step=4, rank=2, op="aten.log", causes=(Cause("log_of_zero", summary="the logarithm of zero"),))
    assert other_causes(own, {1: replace(own, rank=1)}) == []
    assert other_causes(own, {1: own, 2: log}) == ["also bad on rank 2, forward: [NT201] the logarithm of zero"]
    assert other_causes(own, dict.fromkeys(range(1, 8), log))[-1] == "and on 3 more ranks"
