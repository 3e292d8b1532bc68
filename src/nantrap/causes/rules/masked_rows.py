"""NT2xx: softmax, maximum and logsumexp of a row in which every position is masked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from nantrap.causes.claim import Claim
from nantrap.causes.facts import among_samples, listed, masked_rows_of
from nantrap.causes.registry import rule

if TYPE_CHECKING:
    from nantrap.causes.case import Case
    from nantrap.locate.trace import Op

_REDUCTIONS: Final = {"aten.amax": "a maximum", "aten.max": "a maximum", "aten.logsumexp": "logsumexp"}
_MOST_REDUCTIONS: Final = 4
"""Each costs one more run of the step, to record what it was given."""


@rule("softmax_fully_masked_row")
def softmax_fully_masked_row(case: Case) -> Claim | None:
    """Softmax over a row in which every position is masked."""
    capture = case.capture
    if capture is None or case.op not in ("softmax", "log_softmax", "safe_softmax"):
        return _reduced(case)
    scores, dim = capture.args[0], int(capture.args[1]) if isinstance(capture.args[1], int) else -1
    bad_rows = case.output.isnan().any(dim=dim) if case.output is not None else None
    masked_rows = (scores == -math.inf).all(dim=dim)
    if bad_rows is None or not bool(masked_rows.any()) or not bool((bad_rows == masked_rows).all()):
        return _reduced(case)
    count = int(masked_rows.sum())
    samples = among_samples(masked_rows, case.location.samples)
    which = f", from sample {listed(samples)}" if samples else ""
    return Claim(
        "measured",
        "softmax over a row in which every position is masked gave NaN" + which,
        (
            f"{count:,} of {masked_rows.numel():,} rows are -inf everywhere, and exactly those rows are NaN",
            "softmax of such a row is 0/0: exp(-inf - max) with max = -inf",
        ),
        trial=case.try_replacement("softmax", "nantrap.ops.masked_softmax"),
        shows="with a masked softmax the step is finite",
        help="give the row one valid key, or use nantrap.ops.masked_softmax(scores, mask), which gives zeros there "
        "(nan_to_num afterwards leaves NaN in the gradient of an added mask)",
        patch=True,
    )


def _reduced(case: Case) -> Claim | None:
    """A maximum or logsumexp of such a row: -Inf, of which a later operation made NaN, or which reached the loss."""
    for op in _reductions_before(case):
        capture = case.operands_of(op.index)
        if capture is None or op.place is None:
            continue
        masked = masked_rows_of(*capture.args[:2])
        if masked is None or not bool(masked.any()):
            continue
        what = _REDUCTIONS[op.name]
        rows = f"{int(masked.sum()):,} of {masked.numel():,} rows"
        facts = [f"{rows} that {op.name} was given are -inf everywhere, and it gave -Inf there"]
        if case.capture is not None and case.capture.op is not op:
            facts.append(f"{case.location.op} was given that -Inf")
        trial = None
        if case.failure.repeatable:
            trial = case.lab.replaced(op.place.source(), "masked_reduction", "0 in rows that are masked everywhere")
        return Claim(
            "tried",
            f"{what} over a row in which every position is masked is -Inf",
            tuple(facts),
            trial=trial,
            shows="with 0 in the rows that are masked everywhere the step is finite",
            help="give the row one valid position, or a value of its own before the reduction: "
            "x.masked_fill(mask.all(dim, keepdim=True), 0.0)",
        )
    return None


def _reductions_before(case: Case) -> Iterator[Op]:
    """The reductions that gave Inf and lead to the origin, earliest first; the origin's own forward call included."""
    replay, trace = case.location.replay, case.trace
    if replay is None or trace is None or replay.op is None:
        return
    start: Op | None = replay.op
    if replay.op.phase == "backward":
        start = trace.op_of_node(replay.op.sequence)
    if start is None:
        return
    found = sorted(trace.behind([start.index], lambda op: op.inf or op is replay.op), key=lambda op: op.index)
    yield from [op for op in found if op.phase == "forward" and op.name in _REDUCTIONS][:_MOST_REDUCTIONS]
