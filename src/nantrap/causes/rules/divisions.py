"""NT202: a divisor of exactly zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap.causes.claim import Claim, Remedy, rule
from nantrap.causes.facts import all_finite, listed, share
from nantrap.causes.rules.unselected import is_left_out, made_in_forward

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case
    from nantrap.locate.trace import Op

_NORMALISATIONS = ("native_layer_norm", "native_group_norm", "native_batch_norm")


@rule("division_by_zero")
def division_by_zero(case: Case) -> Claim | None:
    """A division by exactly zero."""
    if case.op in _NORMALISATIONS and case.phase == "forward":
        return _normalisation_without_eps(case)
    if case.capture is None or case.output is None:
        return None
    if case.half and not case.in_users_backward and not case.fails_in_float32:
        return None  # a question of precision: see eps_underflow_half
    if case.phase == "optimizer":
        return _division_in_the_update(case)
    if case.phase == "backward" and (made := made_in_forward(case)) is not None and not is_left_out(case):
        return _replaced_afterwards(case, made)
    if case.phase != "forward" and not case.in_users_backward:
        return None
    if 0.0 in case.capture.op.scalars and case.op in ("div", "true_divide"):
        return _division_by_constant(case)
    if case.op == "weight_norm_interface":
        return _weight_norm_of_zeros(case)
    return _division_by_tensor(case)


def _division_by_tensor(case: Case) -> Claim | None:
    """The denominator is a tensor that is exactly 0 at all bad places."""
    denominator = _denominator(case)
    if denominator is None or case.output is None or not _is_zero_where_bad(denominator, case.output):
        return None
    where = _users_backward(case) if case.in_users_backward else case.place
    at = f"{share(denominator == 0)}{_rows_of(denominator)}"
    fact = f"the denominator is exactly 0 at {at}{_made_by(case)}{all_finite(case.inputs)}"
    if _is_unwritten(case):
        return Claim(
            "tried",  # that it divides by 0 was measured; what computes it was not seen
            f"a division by exactly zero in {where} that no line of it shows, such as one in a derivative",
            (fact,),
            help="with create_graph=True, look for a sqrt, a norm or a power at exactly 0, or an acos at ±1: "
            "its derivative divides by 0",
        )
    # a single 0/0 of the two-line form may as well be a mean over nothing: see empty_reduction
    sure = case.failure.repeatable or denominator.numel() > 1 or case.output.numel() > 1 or case.made != "nan"
    family = "pow" if case.op == "pow" else "sqrt" if case.op == "rsqrt" else "div"
    trial = case.try_replacement(family)
    remedies = [case.remedy(family, trial)]
    if trial is not None and trial.finite is False and family == "div":  # 0 there is no better: log(0), 1/0 come next
        trial = case.try_replacement("floor")
        remedies.append(case.remedy("floor", trial))
    return Claim(
        "measured" if sure else "hint",
        f"a division by exactly zero in {where}",
        (fact,),
        trial=trial,
        shows=f"with {trial.change} the step is finite" if trial is not None else "",
        remedies=tuple(remedies),
        help="an eps in the denominator, or a bound on what it is computed from",
        note="blank or constant inputs are the usual reason",
    )


def _replaced_afterwards(case: Case, made: Op) -> Claim | None:
    """The forward pass divided by 0 and used what it put in the place of the result (nan_to_num)."""
    capture = None if case.trace is None else case.trace.captures.get(made.index)
    if capture is None or made.name.rstrip("_") not in ("aten.div", "aten.reciprocal") or made.place is None:
        return None
    denominator = capture.inputs()[-1].detach()
    if not _is_zero_where_bad(denominator, capture.outputs[0]):
        return None
    line = f"line {made.place.line}"
    trial = case.lab.replaced(made.place.source(), "div") if case.failure.repeatable else None
    return Claim(
        "measured",
        f"a division by exactly zero in {line}, whose result was replaced afterwards",
        (
            f"{made.name} in {line}: the denominator is exactly 0 at {share(denominator == 0)}, and the loss is finite",
            "what replaced the result does not replace its derivative, which is infinite there",
        ),
        trial=trial,
        shows=f"with {trial.change} the step is finite" if trial is not None else "",
        remedies=(case.remedy("div", trial, "div"),),
        help="an eps in the denominator, or a bound on what it is computed from",
    )


def _rows_of(denominator: Tensor) -> str:
    """` (row 1)`: which rows have a denominator of 0, where each has one of its own, such as a group its deviation."""
    rows = (denominator.flatten() == 0).nonzero().flatten().tolist()
    if denominator.dim() < 2 or len(denominator) != denominator.numel() or len(rows) == denominator.numel():
        return ""
    return f" (row{'s' * (len(rows) > 1)} {listed(rows)})"


def _is_zero_where_bad(denominator: Tensor, output: Tensor) -> bool:
    """Whether a denominator holds exactly 0, at all places at which the quotient is bad."""
    zero, bad = denominator == 0, ~output.isfinite()
    if not bool(zero.any()):
        return False
    return zero.numel() <= 1 or zero.dim() > bad.dim() or bool(zero.expand_as(bad)[bad].all())


def _made_by(case: Case) -> str:
    """`, made by aten.sum`: the operation behind the denominator, if it was recorded."""
    assert case.capture is not None
    argument = 0 if case.op in ("reciprocal", "rsqrt", "pow") else 1
    made_by = next(iter(case.source_ops(case.capture.op, argument)), None)
    return f", made by {made_by.name}" if made_by is not None else ""


def _is_unwritten(case: Case) -> bool:
    """Whether only the graph shows a division, and nothing in the code that computed the loss is written as one."""
    from nantrap.locate.twoline.infer import is_written

    if case.failure.repeatable or case.location.source is not None or case.phase != "forward":
        return False
    written = "div" if case.op == "true_divide" else case.op
    return case.location.module == "loss" and not is_written(written, case.failure.root)


def _users_backward(case: Case) -> str:
    return "a hook on a gradient" if "AccumulateGrad" in case.node else f"the backward of {case.node}, written by hand"


def _division_by_constant(case: Case) -> Claim:
    return Claim(
        "measured",
        f"a division by the constant 0 in {case.place}",
        (f"{case.location.op} divides by a plain number that is exactly 0 (a temperature, a count)",),
        help="the constant must not become 0: bound it from below where it is scheduled or computed",
    )


def _weight_norm_of_zeros(case: Case) -> Claim | None:
    """g·v/|v| with a row of v that is all zeros."""
    direction = case.inputs[0]
    dim = case.capture.args[2] if case.capture is not None and len(case.capture.args) > 2 else 0
    others = [d for d in range(direction.dim()) if d != dim % direction.dim()]
    zero = (direction == 0).all(others[0]) if len(others) == 1 else (direction == 0).flatten(1).all(1)
    if not bool(zero.any()):
        return None
    verb = "is" if int(zero.sum()) == 1 else "are"
    return Claim(
        "measured",
        f"a weight norm divides by the length of a direction that is all zeros, in {case.place}",
        (f"g·v/|v|: {int(zero.sum()):,} of {zero.numel():,} rows of v {verb} exactly 0{all_finite(case.inputs)}",),
        help="do not set a weight-normed layer to zeros: give v a direction (nn.init.normal_) and set g, its length "
        "(original0 of the parametrization), to 0 instead",
    )


def _normalisation_without_eps(case: Case) -> Claim | None:
    """(x - mean) / sqrt(var + eps) with a variance and an eps that are both 0."""
    deviation = _inverse_deviation(case)
    if deviation is None or not bool(deviation.isinf().any()):
        return None
    without = deviation.isinf()
    trial = case.try_replacement("floor")
    return Claim(
        "measured",
        f"a normalisation divides by a deviation of exactly zero in {case.place}",
        (
            (
                f"{case.location.op}: the variance is 0 in {int(without.sum()):,} of {without.numel():,} groups, and "
                f"its eps does not keep the root from 0{all_finite(case.inputs)}"
            ),
        ),
        trial=trial,
        shows="with an eps of 1e-5 the step is finite",
        remedies=(Remedy("give the layer an eps: eps=1e-5", trial),),
        note="blank or constant inputs are the usual reason",
    )


def _inverse_deviation(case: Case) -> Tensor | None:
    """1 / sqrt(var + eps) of each group, as the guilty normalisation computed it."""
    assert case.capture is not None
    saved = case.capture.outputs[2:3]
    if saved and saved[0].numel():
        return saved[0]
    if case.op == "native_batch_norm" and len(case.inputs) > 1:  # in evaluation: from the running statistics
        eps = case.capture.op.scalars[-1] if case.capture.op.scalars else 0.0
        return (case.inputs[-1] + eps).rsqrt()
    return None


def _division_in_the_update(case: Case) -> Claim | None:
    """The optimizer divides by a norm, a sum or a count of what it was given, and that is 0."""
    denominator = _denominator(case)
    if denominator is None or not bool((denominator == 0).any()) or case.capture is None:
        return None
    measure = case.divisor_measures
    if denominator.numel() == 1 and not measure:
        return None  # perhaps a constant: see optimizer_constant_rounding
    return Claim(
        "measured",
        f"the update divides by {f'the {measure} of something, which is exactly 0' if measure else 'exactly zero'}",
        (f"the denominator is exactly 0 at {share(denominator == 0)}{all_finite(case.inputs)}",),
        help="add an eps to what the optimizer divides by; a parameter whose gradient is exactly 0 is the usual reason",
    )


def _denominator(case: Case) -> Tensor | None:
    """What the guilty operation divides by, if it is a tensor."""
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
        if isinstance(exponent, (int, float)):
            return case.inputs[0] if exponent < 0 else None
        if hasattr(exponent, "isfinite") and hasattr(case.capture.args[0], "isfinite"):
            base: Tensor = case.capture.args[0]
            return base.where(exponent < 0, 1.0)
    return None
