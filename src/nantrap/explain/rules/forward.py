"""NT2xx: mathematics of the forward pass."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nantrap.explain.facts import absmax, limit, share
from nantrap.explain.proofs import add_proof, fix_for, try_replacement
from nantrap.explain.registry import rule
from nantrap.incident import Cause, Evidence, Fix

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.explain.case import Case
    from nantrap.locate.trace import Op

_EXPONENTIALS = ("exp", "expm1", "exp2", "cosh", "sinh")
_LOGARITHMS = {"log": 0.0, "log2": 0.0, "log10": 0.0, "log1p": -1.0, "special_entr": 0.0, "logit": 0.0}
_COUNTS = ("div", "true_divide", "reciprocal", "remainder", "fmod", "addcdiv", "rsqrt")


@rule("softmax_fully_masked_row")
def softmax_fully_masked_row(case: Case) -> Cause | None:
    """Softmax over a row in which every position is masked."""
    capture = case.capture
    if capture is None or case.op not in ("softmax", "log_softmax", "safe_softmax", "logsumexp"):
        return None
    scores, dim = capture.args[0], int(capture.args[1]) if isinstance(capture.args[1], int) else -1
    bad_rows = case.output.isnan().any(dim=dim) if case.output is not None else None
    masked_rows = (scores == -math.inf).all(dim=dim)
    if bad_rows is None or not bool(masked_rows.any()) or not bool((bad_rows == masked_rows).all()):
        return None
    count = int(masked_rows.sum())
    evidence = [
        Evidence(f"{count:,} of {masked_rows.numel():,} rows are -inf everywhere, and exactly those rows are NaN"),
        Evidence("softmax of such a row is 0/0: exp(-inf - max) with max = -inf"),
    ]
    trial = try_replacement(case, "softmax", "nantrap.ops.masked_softmax")
    add_proof(evidence, trial, "with a masked softmax the step is finite")
    samples = case.location.samples
    which = f", from sample {', '.join(map(str, samples.guilty[:4]))}" if samples.guilty else ""
    return Cause(
        "softmax_fully_masked_row",
        proven=True,
        confidence=0.98,
        summary="softmax over a row in which every position is masked gave NaN" + which,
        evidence=tuple(evidence),
        fix=fix_for(
            case,
            "give the row one valid key, or use nantrap.ops.masked_softmax(scores, mask), which gives zeros there "
            "(nan_to_num afterwards leaves NaN in the gradient)",
            trial,
            patch=True,
        ),
    )


@rule("log_of_zero")
def log_of_zero(case: Case) -> Cause | None:
    """The logarithm of zero gave -Inf."""
    if case.capture is None or case.op not in _LOGARITHMS or case.phase != "forward" or not case.inputs:
        return None
    x, pole = case.inputs[0], _LOGARITHMS[case.op]
    at_pole = x == pole
    if case.op == "logit":
        at_pole = (x == 0) | (x == 1)
    below = int((x < pole).sum())
    if not bool(at_pole.any()) and not below:
        return None
    if case.half and not below:
        return None  # a question of precision: see eps_underflow_half
    where = f"{case.location.op} was given exactly {pole:g} at {share(at_pole)}"
    if below:
        where = f"{case.location.op} was given {below:,} values below {pole:g}"
    evidence = [Evidence(where)]
    trial = try_replacement(case, "log", "nantrap.ops.safe_log")
    add_proof(evidence, trial, "with a floor under its argument the step is finite")
    return Cause(
        "log_of_zero",
        proven=not below,
        confidence=0.93 if not below else 0.6,
        summary=f"the logarithm of zero gave -Inf in {case.location.module}",
        evidence=tuple(evidence),
        fix=fix_for(
            case,
            "use log_softmax or logsigmoid on the logits instead of log(softmax(x)), or nantrap.ops.safe_log(x)",
            trial,
            patch=True,
        ),
    )


@rule("division_by_zero")
def division_by_zero(case: Case) -> Cause | None:
    """A division by exactly zero."""
    if case.capture is None or case.phase != "forward" or case.half or case.output is None:
        return None
    denominator = _denominator(case)
    if denominator is None or not bool((denominator == 0).any()):
        return None
    zero = denominator == 0
    bad = ~case.output.isfinite()
    if zero.numel() > 1 and zero.dim() <= bad.dim() and not bool(zero.expand_as(bad)[bad].all()):
        return None
    made_by = next(iter(case.source_ops(case.capture.op, 0 if case.op in ("reciprocal", "rsqrt", "pow") else 1)), None)
    origin = f", made by {made_by.name}" if made_by is not None else ""
    evidence = [Evidence(f"the denominator is exactly 0 at {share(zero)}{origin}; every input is finite")]
    trial = try_replacement(
        case, "pow" if case.op == "pow" else "sqrt" if case.op == "rsqrt" else "div", "nantrap.ops.safe_divide"
    )
    add_proof(evidence, trial, "with a floor under the denominator the step is finite")
    return Cause(
        "division_by_zero",
        proven=True,
        confidence=0.92,
        summary=f"a division by exactly zero in {case.location.module}",
        evidence=tuple(evidence),
        fix=fix_for(
            case,
            "add an eps inside (x / (std + eps)), or nantrap.ops.safe_divide(x, y); blank or constant inputs are the usual reason",
            trial,
            patch=True,
        ),
    )


def _denominator(case: Case) -> Tensor | None:
    assert case.capture is not None
    if case.op in ("div", "true_divide", "remainder", "fmod"):
        other = case.capture.args[1] if len(case.capture.args) > 1 else None
        return other if hasattr(other, "isfinite") else None
    if case.op == "addcdiv":
        tensors = case.inputs
        return tensors[2] if len(tensors) > 2 else None
    if case.op in ("reciprocal", "rsqrt"):
        return case.inputs[0] if case.inputs else None
    if case.op == "pow" and len(case.capture.args) > 1:
        exponent = case.capture.args[1]
        if isinstance(exponent, (int, float)) and exponent < 0:
            return case.inputs[0]
    return None


@rule("zero_times_inf")
def zero_times_inf(case: Case) -> Cause | None:
    """Zero times infinity gave NaN."""
    if case.made != "nan" or case.phase != "forward" or len(case.inputs) < 2 or case.output is None:
        return None
    if case.op in ("mul", "addcmul"):
        a, b = case.inputs[-2], case.inputs[-1]
        bad = case.output.isnan()
        a, b = a.expand_as(bad)[bad], b.expand_as(bad)[bad]
        if not bool((((a == 0) & b.isinf()) | ((b == 0) & a.isinf())).all()):
            return None
        text = f"at all {int(bad.sum()):,} bad places one factor is 0 and the other Inf"
    elif case.op in ("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "matmul"):
        if not any(bool(t.isinf().any()) for t in case.inputs) or not any(bool((t == 0).any()) for t in case.inputs):
            return None
        text = "one matrix holds Inf where the other holds 0"
    else:
        return None
    return Cause(
        "zero_times_inf",
        proven=case.op in ("mul", "addcmul"),
        confidence=0.93,
        summary="zero times infinity gave NaN: a mask product does not remove an Inf",
        evidence=(Evidence(text), Evidence("the Inf was there on purpose (a mask); nothing overflowed before")),
        fix=Fix(
            text="select instead of multiplying: torch.where(mask, x, 0) before the product, or nantrap.ops.xlogx(p) for p·log p"
        ),
    )


@rule("exp_overflow")
def exp_overflow(case: Case) -> Cause | None:
    """Exp of a finite value exceeded the range of its dtype."""
    if case.op not in _EXPONENTIALS or case.made != "inf" or not case.inputs or case.output is None:
        return None
    x = case.inputs[0]
    top = absmax(x) if case.op in ("cosh", "sinh") else float(x.max())
    bound = math.log(limit(case.output)) / (math.log(2) if case.op == "exp2" else 1.0)
    evidence = [Evidence(f"{case.location.op} was given {top:.4g}; in {case.dtype} it overflows above {bound:.4g}")]
    trial = try_replacement(case, "exp", "an argument bounded from above")
    add_proof(evidence, trial, "with a bounded argument the step is finite")
    samples = case.location.samples
    if samples.guilty and samples.rest_is_finite:
        evidence.append(Evidence(f"only sample {', '.join(map(str, samples.guilty[:4]))} reaches it"))
    return Cause(
        "exp_overflow",
        proven=True,
        confidence=0.9,
        summary=f"exp of {top:.4g} exceeds the range of {case.dtype} in {case.location.module}",
        evidence=tuple(evidence),
        fix=fix_for(
            case, "bound the argument (log-variances to [-30, 20]), or stay in log space with logsumexp", trial
        ),
    )


@rule("std_of_one_element")
def std_of_one_element(case: Case) -> Cause | None:
    """An unbiased standard deviation of a single element."""
    if case.op not in ("std", "var", "var_mean", "std_mean") or case.made != "nan" or case.output is None:
        return None
    count = case.inputs[0].numel() // max(1, case.output.numel())
    evidence = [
        Evidence(f"each group holds {count} element(s): the unbiased estimate divides by {count} - 1 = {count - 1}")
    ]
    trial = try_replacement(case, "std", "nantrap.ops.safe_std")
    add_proof(evidence, trial, "with a deviation that is 0 for one element the step is finite")
    return Cause(
        "std_of_one_element",
        proven=True,
        confidence=0.97,
        summary="an unbiased standard deviation over one element is 0/0",
        evidence=tuple(evidence),
        fix=fix_for(
            case, "correction=0, drop_last=True in the DataLoader, or nantrap.ops.safe_std(x)", trial, patch=True
        ),
    )


def _same_place(op: Op, origin: Op) -> bool:
    """The same instruction of the user's code, reached again: a round of a loop or of a recurrence."""
    if op.place is None or origin.place is None:
        return op.place is origin.place
    return (op.place.code, op.place.instruction) == (origin.place.code, origin.place.instruction)


@rule("exploding_recurrence")
def exploding_recurrence(case: Case) -> Cause | None:
    """One forward pass multiplied its values again and again."""
    if case.trace is None or case.capture is None or case.phase != "forward" or case.made != "inf" or case.half:
        return None
    origin = case.capture.op
    same_line = [
        op.absmax
        for op in case.trace.ops[: origin.index]
        if op.name == origin.name
        and op.phase == "forward"
        and op.absmax is not None
        and op.module == origin.module
        and _same_place(op, origin)
    ]
    if len(same_line) < 4 or min(same_line) <= 0:
        return None
    tail = same_line[-8:]
    ratios = [b / a for a, b in zip(tail, tail[1:], strict=False)]
    typical = sorted(ratios)[len(ratios) // 2]
    if typical < 1.3 or tail[-1] / tail[0] < 10:
        return None
    shown = " -> ".join(f"{value:.3g}" for value in tail[-5:])
    return Cause(
        "exploding_recurrence",
        proven=True,
        confidence=0.9 if case.growth < 10 else 0.75,
        summary=f"{origin.module} multiplied its values by about {typical:.3g} in each of {len(same_line) + 1} rounds",
        evidence=(
            Evidence(f"{origin.name} at the same line gave {shown} -> Inf within one forward pass"),
            Evidence(f"the factor a round is {typical:.3g}: growth inside the step, not between steps"),
        ),
        fix=Fix(
            text="normalise or gate the state in each round (LayerNorm, a spectral bound below 1, tanh), or run fewer rounds"
        ),
    )
