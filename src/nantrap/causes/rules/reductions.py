"""NT1xx and NT2xx: a mean or quotient over nothing, and a softmax or maximum over a row that is masked everywhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from nantrap.causes.claim import Claim, Remedy, rule
from nantrap.causes.facts import among_samples, listed, masked_rows_of, share
from nantrap.causes.usual import flags_before

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case
    from nantrap.locate.trace import Op

_ADDED_OVER_MASKS = ("sum", "count_nonzero", "mean")
_AVERAGES = (
    "mean", "nanmean", "median", "nanmedian", "var", "std", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss",
    "huber_loss", "binary_cross_entropy", "kl_div", "div", "norm", "linalg_vector_norm", "quantile", "soft_margin_loss",
)  # fmt: skip
_FLAGS = (
    "gt", "ge", "lt", "le", "eq", "ne", "logical_not", "logical_and", "logical_or", "bitwise_not",
    "bitwise_and", "isfinite", "isnan",
    "ones_like", "zeros_like", "ones", "zeros", "one_hot", "scatter", "arange", "count_nonzero", "masked_fill", "where",
    "rsub", "new_ones", "new_zeros", "full",
)  # fmt: skip
_SUMS = ("sum", "mean", "mm", "bmm", "dot", "mv", "matmul")
_MOVES = (
    "_to_copy", "view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "expand", "transpose", "t", "permute",
    "slice", "select", "clone", "alias", "detach", "mul",
)  # fmt: skip
_SPREADS = ("std", "var", "linalg_vector_norm", "sub", "amax", "max", "sqrt", "norm", "native_layer_norm", "abs")


@rule("empty_reduction", phase="forward", made="nan")
def empty_reduction(case: Case) -> Claim | None:
    """A mean or quotient was taken over zero elements."""
    capture = case.capture
    if capture is None:
        return None
    if case.op.startswith("nll_loss"):
        target, ignored = capture.args[1], capture.args[4]
        total = capture.outputs[1] if len(capture.outputs) > 1 else (target != ignored).sum()
        if bool((total == 0).all()):  # the weight by which the mean divides
            summary = "every label of the batch is ignored"
            text = f"all {target.numel():,} targets are {ignored} (ignored): the mean is 0/0"
            if not target.numel():
                summary, text = "the batch has no label", "there is no target: the mean is 0/0"
            if bool((target != ignored).any()):
                also = "is ignored or " * bool((target == ignored).any())
                summary = f"every label of the batch {also}has a class weight of 0"
                text = "the weights of all classes that occur are 0: the mean is 0/0"
            trial = case.try_replacement("cross_entropy")
            instead = case.remedy("cross_entropy", trial, "cross_entropy")
            return _empty(case, summary, text, "", instead)
    if case.inputs and all(t.numel() == 0 for t in case.inputs) and case.op.startswith(_AVERAGES):
        text = f"{capture.op.name} was given an empty tensor of shape {tuple(case.inputs[0].shape)}"
        return _empty(
            case,
            "a reduction over no element",
            text,
            "skip the term when nothing is selected, or nantrap.ops.masked_mean(x, mask)",
        )
    return _count_of_nothing(case)


def _count_of_nothing(case: Case) -> Claim | None:
    """0 / 0 where the denominator counted a mask that selects nothing."""
    capture = case.capture
    assert capture is not None
    if case.op not in ("div", "true_divide") or case.output is None:
        return None
    given = capture.inputs()  # the sum of a boolean mask is a whole number, so not only floating-point operands
    if len(given) < 2:
        return None
    numerator, denominator = given[0].detach(), given[1].detach()
    if not bool((denominator == 0).any()):
        return None
    bad = ~case.output.isfinite()
    if not bool((numerator.expand_as(bad)[bad] == 0).all()):
        return None
    if not case.failure.repeatable and not capture.op.sources:
        return _perhaps_nothing(case, numerator, denominator)
    counted = _counted_by(case)
    if counted is None:
        return None
    return _empty(
        case,
        "a quotient over a count of zero",
        f"the denominator is exactly 0 in {share(denominator == 0)} and was made by {counted}, the numerator is 0 too",
        "nantrap.ops.masked_mean(x, mask)",
        case.remedy("count", case.try_replacement("count")),
    )


def _perhaps_nothing(case: Case, numerator: Tensor, denominator: Tensor) -> Claim | None:
    """In the two-line form it is not known what made the two: one sum divided by another, both exactly 0."""
    if numerator.numel() != 1 or denominator.numel() != 1:
        return None
    return Claim(
        "hint",
        "0 divided by 0: perhaps a sum over a count, and nothing was selected",
        ("numerator and denominator are single numbers, both exactly 0; what made them was not seen",),
        help="nantrap.ops.masked_mean(x, mask), or divide by count.clamp(min=1)",
    )


def _counted_by(case: Case) -> str | None:
    """The operation that counted a mask to make the denominator: a sum over comparisons, flags or whole numbers."""
    assert case.capture is not None
    chain = case.source_ops(case.capture.op, 1)
    names = [op.name.removeprefix("aten.").rstrip("_") for op in chain]
    position = next((i for i, name in enumerate(names) if name in (*_ADDED_OVER_MASKS, *_SPREADS)), None)
    if position is None or names[position] not in _ADDED_OVER_MASKS:
        return None
    if any(op.phase == "backward" for op in chain):
        return None  # a derivative that the program took: the ones it begins with are no mask
    behind = names[position + 1 :]
    from_outside = chain[-1].sources[:1] == (-1,) and all(name in _MOVES for name in behind)  # came with the batch
    made_here = any(name in _FLAGS for name in behind)
    if not from_outside and not made_here:
        return None
    kept = case.operands_of(chain[position].index)
    summed = kept.inputs()[0] if kept is not None and kept.inputs() else None
    if summed is not None and not _is_counted(case, summed.detach(), made_here=made_here):
        cast = [op for op in chain[position + 1 :] if op.name == "aten._to_copy"]
        return names[position] if any(_was_whole(case, op) for op in cast) else None
    return names[position]


def _was_whole(case: Case, cast: Op) -> bool:
    """Whether a tensor held flags or whole numbers before it was cast. Bytes are left out: a blank image is no mask."""
    kept = case.operands_of(cast.index)
    given = kept.inputs()[:1] if kept is not None else []
    return any(str(t.dtype) in ("torch.bool", "torch.int32", "torch.int64") for t in given)


def _is_counted(case: Case, summed: Tensor, *, made_here: bool) -> bool:
    """Whether a sum over these values is a count: flags, or whole numbers. A sum that is 0 of measured values is none.

    A float tensor of zeros alone does not show it: a mask that selects nothing, or a blank image. Then the batches
    before decide, or that a sum is divided by it: a weighted mean whose weights are all 0.
    """
    if not summed.is_floating_point():
        return True
    if not bool(((summed == 0) | (summed == 1)).all()):
        return False
    if bool((summed != 0).any()) or made_here:
        return True
    before = flags_before(case, summed)
    assert case.capture is not None
    divided = [op.name.removeprefix("aten.") for op in case.source_ops(case.capture.op, 0)[:2]]
    return before if before is not None else any(name in _SUMS for name in divided)


def _empty(case: Case, summary: str, text: str, advice: str, instead: Remedy | None = None) -> Claim:
    facts = [text]
    if case.incident.grad_norm is not None and case.incident.grad_norm == 0:
        facts.append("the gradients are all zero: nothing to roll back")
    trial, remedies = (None, ()) if instead is None else (instead.trial, (instead,))
    shows = "with the safe form the step is finite"
    return Claim("measured", summary, tuple(facts), trial=trial, shows=shows, remedies=remedies, help=advice)


_REDUCTIONS: Final = {"aten.amax": "a maximum", "aten.max": "a maximum", "aten.logsumexp": "logsumexp"}
_MOST_REDUCTIONS: Final = 4
"""Each costs one more run of the step, to record what it was given."""


@rule("softmax_fully_masked_row", ops=("softmax", "log_softmax", "safe_softmax"))
def softmax_fully_masked_row(case: Case) -> Claim | None:
    """Softmax over a row in which every position is masked."""
    capture = case.capture
    if capture is None:
        return None
    scores, dim = capture.args[0], int(capture.args[1]) if isinstance(capture.args[1], int) else -1
    bad_rows = case.output.isnan().any(dim=dim) if case.output is not None else None
    masked_rows = (scores == -math.inf).all(dim=dim)
    if bad_rows is None or not bool(masked_rows.any()) or not bool((bad_rows == masked_rows).all()):
        return None
    count = int(masked_rows.sum())
    samples = among_samples(masked_rows, case.location.samples)
    which = f", from sample {listed(samples)}" if samples else ""
    trial = case.try_replacement("softmax")
    return Claim(
        "measured",
        "softmax over a row in which every position is masked gave NaN" + which,
        (
            f"{count:,} of {masked_rows.numel():,} rows are -inf everywhere, and exactly those rows are NaN",
            "softmax of such a row is 0/0: exp(-inf - max) with max = -inf",
        ),
        trial=trial,
        shows="with a masked softmax the step is finite",
        remedies=(case.remedy("softmax", trial),),
        help="give the row one valid key",
        note="a masked softmax gives zeros there; nan_to_num afterwards leaves NaN in the gradient of an added mask",
    )


@rule("softmax_fully_masked_row")
def masked_row_reduced(case: Case) -> Claim | None:
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
            trial = case.lab.replaced(op.place.source(), "masked_reduction")
        return Claim(
            "tried",
            f"{what} over a row in which every position is masked is -Inf",
            tuple(facts),
            trial=trial,
            shows="with 0 in the rows that are masked everywhere the step is finite",
            remedies=(case.remedy("masked_reduction", trial, op.name.removeprefix("aten.")),),
            help="give the row one valid position",
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
