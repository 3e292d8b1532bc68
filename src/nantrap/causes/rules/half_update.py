"""NT4xx after the forward pass: the loss scale, and the optimizer's constants in half precision."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from nantrap.causes.claim import Claim, Remedy, rule
from nantrap.causes.facts import rounded, share
from nantrap.causes.steep import find_amplifier

if TYPE_CHECKING:
    from nantrap.causes.case import Case
    from nantrap.locate.trace import Op


@rule("adam_eps_underflow_half", phase="optimizer", ops=("addcdiv", "div"))
def adam_eps_underflow_half(case: Case) -> Claim | None:
    """Adam's eps is zero in the precision of its state."""
    if case.capture is None:
        return None
    denominator = case.inputs[-1]
    if denominator.numel() <= 1 or not bool((denominator == 0).any()):
        return None
    given = [group["eps"] for group in case.failure.optimizer.param_groups if "eps" in group]
    lost = [eps for eps in given if rounded(eps, denominator) == 0]
    if not lost:
        return None  # it divides by something else that is 0
    facts = (
        f"what the update divides by is exactly 0 at {share(denominator == 0)} in {case.dtype}",
        f"eps = {lost[0]:g} is 0 in {case.dtype}",
    )
    summary = f"the optimizer's eps is 0 in {case.dtype}, so it divides by zero"
    if not case.half:
        return Claim(
            "tried",
            summary,
            facts,
            trial=case.lab.update_with("eps", 1e-8),
            shows="the same update with eps=1e-8 is finite",
            remedies=(Remedy("eps=1e-8 in every parameter group", case.lab.update_with("eps", 1e-8)),),
        )
    return Claim(
        "tried",
        summary,
        facts,
        trial=case.lab.update_in_single_precision(),
        shows="the same update in float32 is finite",
        remedies=(
            Remedy("weights, gradients and optimizer state in float32", case.lab.update_in_single_precision()),
            Remedy("eps=1e-4 in every parameter group", case.lab.update_with("eps", 1e-4)),
        ),
    )


@rule("optimizer_constant_rounding", phase="optimizer", ops=("div", "reciprocal", "addcdiv", "rsqrt"))
def optimizer_constant_rounding(case: Case) -> Claim | None:
    """An optimizer constant rounds to one in its precision."""
    if case.capture is None:
        return None
    divisors = [t for t in case.inputs if t.numel() == 1 and bool((t == 0).all())]
    scalar_zero = any(number == 0.0 for number in case.capture.op.scalars)
    if not divisors and not scalar_zero:
        return _behind_the_divisor(case)
    if divisors and case.divisor_measures:
        return None  # a norm or a sum that is 0 is no constant: see division_by_zero
    dtype = str(divisors[0].dtype).removeprefix("torch.") if divisors else case.dtype
    rounded_away = _rounded_to_one(case)
    trial = case.lab.update_in_single_precision()
    facts = [f"{case.location.op} divides by a single value that is exactly 0, in {dtype}"]
    facts += [rounded_away] if rounded_away else []
    if trial.finite is False:
        facts.append("weights, gradients and state in float32 do not clear it")
    return Claim(
        "measured" if trial.finite is False and rounded_away else "hint",
        "a bias correction 1 - beta^t is exactly 0: its constant was rounded to 1"
        if rounded_away
        else "the update divides by a single value that is exactly 0",
        tuple(facts),
        help="keep the optimizer's constants as Python floats or float32 tensors"
        if rounded_away
        else "check what the optimizer divides by: a bias correction, a norm or a count that is 0",
    )


def _behind_the_divisor(case: Case) -> Claim | None:
    """A memory of the optimizer is exactly 0 because the weight of what is new, 1 - beta, is 0 in half precision."""
    if not case.half or case.trace is None or case.capture is None or not bool((case.inputs[-1] == 0).any()):
        return None
    behind = case.trace.behind(case.capture.op.sources, lambda op: op.phase == "optimizer", most=64)
    constant = next((op for op in behind if _is_one_minus_one(op)), None)
    if constant is None:
        return None
    zeros = case.inputs[-1] == 0
    return Claim(
        "tried",
        f"the weight of a new gradient, 1 - beta, is exactly 0: beta was rounded to 1 in {constant.dtype}",
        (
            f"{case.location.op} divides by exactly 0 at {share(zeros)}",
            f"what it divides by was computed with 1 minus a number that is exactly 1 in {constant.dtype}",
        ),
        trial=case.lab.update_in_single_precision(),
        shows="the same update in float32 is finite",
        help="keep the optimizer's constants as Python floats or float32 tensors",
    )


def _is_one_minus_one(op: Op) -> bool:
    """Whether an operation took 1 minus a number and got exactly 0."""
    subtracts = op.name.rstrip("_") in ("aten.rsub", "aten.sub", "aten._foreach_sub", "aten.add")
    return subtracts and 1.0 in op.scalars and op.absmax == 0


def _rounded_to_one(case: Case) -> str:
    """A constant of the optimizer that is exactly 1 in its own low precision, or the difference 1 - 1 in the update."""
    for group in case.failure.optimizer.param_groups:
        for name, value in group.items():
            if not name.startswith(("beta", "momentum", "rho", "alpha", "decay", "gamma")):
                continue  # a learning rate of 1 is no constant that is subtracted from 1
            for one in value if isinstance(value, (tuple, list)) else (value,):
                if getattr(one, "dtype", None) is not None and one.numel() <= 4 and bool((one == 1).any()):
                    return f"{name} of the optimizer is exactly 1 in {str(one.dtype).removeprefix('torch.')}"
    if case.trace is None or case.capture is None:
        return ""
    for argument in range(len(case.capture.op.sources)):
        for op in case.source_ops(case.capture.op, argument)[:4]:
            if _is_one_minus_one(op):
                return "it was computed as 1 minus a number that is exactly 1 in its precision"
    return ""


@rule("loss_scale_misuse", phase="backward")
def loss_scale_misuse(case: Case) -> Claim | None:
    """The loss scale overflowed, collapsed or was applied in the wrong order."""
    if case.trace is None or not case.any_half:
        return None
    scale = case.run.scale if case.run.scale and case.run.scale > 1 else _scale_by_hand(case)
    if scale is None:
        return _overflow_in_half_backward(case)
    trial = case.lab.loss_scaled(1.0 / scale, f"a loss scale of 1 instead of {scale:g}")
    if not trial.finite:
        if trial.finite is False:
            case.refute("loss_scale_misuse", trial, "a loss scale of 1 does not help")
        return None
    again = _scale_set_again(case)
    return Claim(
        "tried",
        f"a loss scale of {scale:g} overflows the gradients" + (": it was set to it again" if again else ""),
        (
            f"the loss is multiplied by {scale:g} before backward, and {case.location.op} overflows in {case.dtype}",
            *again,
        ),
        trial=trial,
        shows="with a scale of 1 the gradients are finite",
        help=_help_for_scale(scale, case.run.scale, again=bool(again)),
    )


def _help_for_scale(scale: float, of_scaler: float | None, *, again: bool) -> str:
    """What to do about a scale, of which a scaler has its part."""
    if again:
        return "make one GradScaler before the first epoch and keep it: a new one begins with its first scale again"
    if not of_scaler:
        return "use torch.amp.GradScaler, which lowers the scale automatically, and pass it to the guard"
    if of_scaler <= 1.0:
        return f"the scaler is at {of_scaler:g} already; the program itself multiplies the loss by {scale:g}"
    return "let the scaler go on, it lowers its scale after each such step; init_scale begins with a lower one"


def _scale_set_again(case: Case) -> tuple[str, ...]:
    """Where the scale rose more than a GradScaler raises it in one step, in words: something made it anew.

    A rollback restores an older scale, too. It lowers the learning rate.
    """
    scales = [(record.step, record.scale, sum(record.lr)) for record in case.run.history if record.scale]
    scales += [(case.failure.step, case.run.scale, sum(case.incident.lr))] if case.run.scale else []
    rises = [
        (before, after, step)
        for (_, before, rate), (step, after, rate_now) in itertools.pairwise(scales)
        if before and after and after >= _SET_AGAIN * before and rate_now >= rate
    ]
    if not rises:
        return ()
    before, after, step = rises[-1]
    return (f"the scale rose from {before:g} to {after:g} in step {step:,}; a GradScaler at most doubles it",)


def _overflow_in_half_backward(case: Case) -> Claim | None:
    """No scale is seen, and a gradient leaves the range of float16.

    The backward pass is linear in the loss. A gradient that is only too large is finite for a smaller loss; an infinite
    slope stays infinite.
    """
    if case.made != "inf" or case.dtype != "float16":
        return None
    if any(finding.kind == "grad_norm" for finding in case.incident.findings):
        return None  # every gradient is finite, and only their norm is not: see grad_norm_overflow
    trial = None
    if case.failure.repeatable:
        if find_amplifier(case) is not None:  # one steep slope made it that large, and is the better explanation
            return None
        trial = case.lab.loss_scaled(1.0 / _SMALLER, f"the loss divided by {_SMALLER:,}")
        if not trial.finite:
            return None
    return Claim(
        "tried" if trial is not None else "hint",
        "a gradient exceeds the range of float16 in the backward pass"
        + ("" if trial is not None else ": the loss is probably scaled too high"),
        (f"{case.location.op} overflows in {case.dtype} though the forward pass is finite",),
        trial=trial,
        shows=f"with the loss divided by {_SMALLER:,} the gradients are finite",
        help="use torch.amp.GradScaler, which lowers the scale automatically, also below 1, and pass it to the guard",
    )


def _single_factor(case: Case, product: Op) -> float | None:
    """The one number that a product of tensors multiplies by, if it is as large as a loss scale and the only one."""
    kept = case.operands_of(product.index)
    for factor in [] if kept is None else kept.inputs():
        values = factor.detach().flatten()
        if values.numel() and float(values[0]) >= _SMALLEST_SCALE and bool((values == values[0]).all()):
            return float(values[0])
    return None


_SET_AGAIN = 4.0
"""A GradScaler doubles its scale; one that grows faster in a step was replaced, or its state was loaded."""
_SMALLEST_SCALE = 100.0
"""A factor of a loss below this is a weight of one term; a loss scale is a power of two in the thousands."""
_SMALLER = 1 << 16
"""By what a loss is divided to see whether its gradients are only too large."""
_NO_ARITHMETIC = frozenset({"aten.detach", "aten.alias", "aten.ones_like", "aten._local_scalar_dense"})
_LINEAR = frozenset(
    ("mul", "div", "sum", "mean", "neg", "_to_copy", "view", "_unsafe_view", "squeeze", "unsqueeze", "expand", "clone")
)
"""What may follow a factor of the loss: the loss then is that many times as large."""


def _scale_by_hand(case: Case) -> float | None:
    """The constant, large enough for a scale, by which the loss was multiplied last, outside the model.

    Only linear operations may come after it: a factor inside the loss, before a square say, is no scale. Operations
    that compute nothing are left out: how many of them torch adds differs between its versions.
    """
    assert case.trace is not None
    forward = [op for op in case.trace.ops if op.phase == "forward" and not op.inside and op.name not in _NO_ARITHMETIC]
    for op in reversed(forward[-6:]):
        if op.name == "aten.mul":
            large = [number for number in op.scalars if number >= _SMALLEST_SCALE]
            if large:
                return large[0]
            before = [case.trace.ops[source].absmax for source in op.sources if source >= 0]
            if any(op.absmax and size and op.absmax / size >= _SMALLEST_SCALE for size in before):
                return _single_factor(case, op)  # weights that differ are no scale
        if op.name.removeprefix("aten.") not in _LINEAR:
            return None
    return None
