"""NT3xx: a slope that is infinite at a point, or too steep for the dtype. The forward pass was finite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap.causes.claim import Claim, Remedy, rule
from nantrap.causes.facts import USUAL_EPS, epsilon, share
from nantrap.causes.rules.unselected import value_pole
from nantrap.causes.steep import family_of, find_amplifier, written_as
from nantrap.thresholds import FLOAT16_MAX

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case
    from nantrap.causes.steep import Amplifier
    from nantrap.incident import Trial

_INSIDE = {
    "sqrt": ("sqrt(x + 1e-12)", "sqrt(x) + eps"),
    "pow": ("(x + 1e-12) ** a", "x ** a + eps"),
    "log": ("log(x + 1e-12)", "log(x) + eps"),
    "div": ("a / (b + 1e-6)", "a / b + eps"),
    "norm": ("sqrt(x.square().sum() + 1e-12)", "x.norm() + eps"),
    "std": ("sqrt(x.var() + 1e-12)", "x.std() + eps"),
    "Log1P": ("log1p(x.clamp(min=-1 + 1e-6))", "log1p(x) + eps"),
}
"""Where an eps helps, and where it does not: by family, or by the node whose pole is not at 0."""
_ENDS = {
    "AcosBackward0": ("acos", "±1", "1/√(1 - x²)"),
    "AsinBackward0": ("asin", "±1", "1/√(1 - x²)"),
    "AcoshBackward0": ("acosh", "1", "1/√(x² - 1)"),
}
"""Calls whose slope is infinite at the ends of their domain: where that is, and the slope."""
_NEXT_TO_ZERO = 1e-4
"""Below this a slope of 1/x or 1/√x can leave the range of its dtype; above it another factor is what is large."""
_JUST_OUTSIDE = 1e-3
"""A cosine that is further beyond ±1 was not moved there by rounding, not even in bfloat16."""
_ROUNDINGS = 64
"""The rounding error of a cosine of long vectors, at most, in units of the last digit that its dtype holds."""


@rule("arccos_boundary", phase="backward", ops=("rsqrt",))
def arccos_boundary(case: Case) -> Claim | None:
    """The derivative of acos or asin is infinite at ±1."""
    if case.node not in _ENDS or not _root_of_zero(case):
        return None
    assert case.output is not None
    call, end, slope = _ENDS[case.node]
    summary = f"the derivative of {call} is infinite at {end}"
    fact = f"{case.node} computes {slope}, and x is exactly {end} at {share(~case.output.isfinite())}"
    shows = "with a bounded slope the step is finite"
    if call == "acosh":
        trial = case.try_replacement("domain")
        remedy = case.remedy("domain", trial, call)
        return Claim("measured", summary, (fact,), trial=trial, shows=shows, remedies=(remedy,))
    trial = case.try_replacement("acos")
    return Claim(
        "measured",
        summary,
        (fact,),
        trial=trial,
        shows=shows,
        remedies=(case.remedy("acos", trial, call),),
        help="atan2, or clamp to ±(1 - 1e-6) (before torch 2.15, to [-1, 1] is not enough)",
    )


def _root_of_zero(case: Case) -> bool:
    """Whether the slope divides by a root that is exactly 0 at all bad places."""
    if not case.inputs or case.output is None or case.inputs[0].shape != case.output.shape:
        return False
    return bool((case.inputs[0][~case.output.isfinite()] == 0).all())


@rule("singular_gradient_at_zero", phase="backward")
def singular_gradient_at_zero(case: Case) -> Claim | None:
    """The derivative is infinite at exactly zero."""
    if case.capture is None:
        return None
    if case.dtype == "float16" and case.made == "inf" and (steep := find_amplifier(case)) is not None:
        return _too_steep_for_half(case, steep)
    name, (family, _, _) = family_of(case.node)
    if not name or family in ("acos", "exp"):
        return None
    if case.made == "inf" and case.op in ("mm", "bmm", "addmm", "convolution_backward"):
        return None
    if value_pole(case) and not case.failure.repeatable:
        return None  # its value is infinite as well, and was left out: see where_unselected_branch
    nearest = _nearest_to_zero(case)
    if nearest is None or (nearest != 0.0 and (case.made != "inf" or nearest > _NEXT_TO_ZERO)):
        return None
    return _steep_at_zero(case, exact=nearest == 0.0)


def _steep_at_zero(case: Case, *, exact: bool) -> Claim:
    """The slope of a call at its pole, where it is infinite, or so near to it that it leaves the range of the dtype."""
    name, (family, call, safe) = family_of(case.node)
    slope = f"the {case.derivative} of {call}"
    if family == "pow" and slope.startswith("the second"):
        slope = slope.replace("a < 1", "a < 2")
    inside, outside = _INSIDE.get(name) or _INSIDE[family]
    pole = "-1" if name == "Log1P" else "zero"
    where = f"at exactly {pole}" if exact else f"next to {pole}"
    grows = "is infinite" if exact else "leaves the range of the dtype"
    trial, remedy = None, Remedy(safe)
    if family != "norm":
        trial = case.try_replacement(family if exact else "floor")
        remedy = case.remedy(family if exact else "floor", trial, written_as(name))
    return Claim(
        "tried" if case.failure.repeatable and family != "norm" else "measured",
        f"{slope} {grows} {where}",
        (f"{case.node}: {slope} {grows} {where}; {_zeros(case)}",),
        trial=trial,
        shows="with a bounded slope the step is finite",
        remedies=(remedy,),
        help=(
            f"an eps inside: {inside}"
            if exact
            else f"keep the argument of {call} further from {pole}, by a floor or an eps inside such as {USUAL_EPS:g}"
        )
        + f" (an eps outside, {outside}, changes nothing)",
    )


def _too_steep_for_half(case: Case, steep: Amplifier) -> Claim:
    """The slope next to 0 is finite, and the gradient that it makes does not fit float16."""
    place = steep.forward.place
    trial = None
    if place is not None and case.failure.repeatable:
        trial = case.lab.replaced(place.source(), "floor")
    also: tuple[tuple[Trial, str], ...] = ()
    if trial is not None and not trial.finite:
        also = ((case.lab.single_precision(), "in float32 the same gradient is finite"),)
    line = "" if place is None else f" in line {place.line} of {place.source().function}"
    return Claim(
        "tried",
        f"the slope of {steep.call} next to zero makes a gradient that float16 cannot hold",
        (
            f"{steep.op.node} multiplies the gradient by up to {steep.gain:.2g}: {steep.reason}",
            f"{case.location.op} writes it in float16, which ends at {FLOAT16_MAX:,.0f}; without that factor it fits",
        ),
        trial=trial,
        shows="with the argument kept further from zero the step is finite",
        also=also,
        remedies=() if trial is None or trial.finite is None else (Remedy(trial.change, trial),),
        help=f"a larger eps for {steep.call}{line}, for example {USUAL_EPS:g}",
        note="an eps that float32 holds may still be too small for the gradient in float16, and a GradScaler only "
        "multiplies it further",
    )


def _nearest_to_zero(case: Case) -> float | None:
    """The smallest magnitude the derivative was computed at, among the bad places where those are known."""
    x = _denominator(case)
    if x is None or not x.numel():
        return None
    if case.output is not None and x.shape == case.output.shape:
        x = x[~case.output.isfinite()]
    return float(x.abs().double().min()) if x.numel() else None


def _denominator(case: Case) -> Tensor | None:
    """What the derivative divides by, or takes a negative power of, as the guilty operation was given it."""
    if case.op in ("div", "true_divide", "addcdiv"):
        return case.inputs[-1] if len(case.inputs) > 1 else None
    if case.op == "mul" and len(case.inputs) > 1:
        # the slope itself overflowed before, or the product with it does: the factor that is Inf, or the larger one
        factors = [1 / t.double() for t in case.inputs if bool(t.isinf().any())]
        largest = max(case.inputs, key=lambda t: float(t.abs().nan_to_num(0.0).max()) if t.numel() else 0.0)
        return factors[0] if factors else 1 / largest.double()
    if case.op == "pow" and case.node.startswith("Rsqrt") and case.inputs:
        return case.inputs[0].double().pow(-2)  # the node keeps x^(-1/2)
    return case.inputs[0] if case.inputs else None


def _zeros(case: Case) -> str:
    """What the derivative was given, as measured."""
    x = _denominator(case)
    if x is None:
        return "what it was given was not kept"
    zero = x == 0
    if bool(zero.any()):
        return f"what it divides by is 0 at {share(zero)}"
    return f"what it divides by is as small as {float(x.abs().double().min()):.3g}"


@rule("arccos_boundary", phase="forward", ops=("acos", "asin"), made="nan")
def just_outside(case: Case) -> Claim | None:
    """acos of 1.0000001: rounding moved a cosine just outside the domain, and the value itself is NaN."""
    if not case.inputs:
        return None
    given = case.inputs[0].double()
    beyond = given.abs() - 1
    worst, furthest = float(beyond.max()), float(given.flatten()[beyond.argmax()])
    if not 0 < worst <= _JUST_OUTSIDE:
        return None
    trial = case.try_replacement("acos")
    how = "rounding moved it" if worst <= _ROUNDINGS * epsilon(case.inputs[0]) else "it lies"
    return Claim(
        "measured",
        f"{case.op} was given {furthest:.9g}: {how} beyond ±1",
        (f"{case.location.op} was given values beyond ±1 at {share(beyond > 0)}, by {worst:.3g} at most",),
        trial=trial,
        shows="with its argument kept within ±1 the step is finite",
        remedies=(case.remedy("acos", trial),),
        help="atan2, or clamp to ±(1 - 1e-6)",
    )
