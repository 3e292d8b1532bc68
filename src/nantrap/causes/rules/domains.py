"""NT2xx: an argument for which a function has no value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap.causes.claim import Claim, Has
from nantrap.causes.facts import USUAL_EPS, all_finite, share
from nantrap.causes.registry import rule

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case


_BOUNDED = {
    **dict.fromkeys(("acos", "asin", "atanh", "erfinv"), "x.clamp(-1 + 1e-6, 1 - 1e-6)"),
    **dict.fromkeys(("log1p", "special_xlog1py"), "x.clamp(min=-1 + 1e-6)"),
    "acosh": "x.clamp(min=1 + 1e-6)",
    "logit": "x.clamp(1e-6, 1 - 1e-6)",
}
"""Where the domain does not begin at 0: what keeps an argument inside it in float32."""
_NOT_ZERO = "drop_last=True in the DataLoader, or divide by nantrap.ops.{safe}(x) + eps: a {kind} of 0 gives 0/0 next"


@rule("std_of_one_element")
def std_of_one_element(case: Case) -> Claim | None:
    """An unbiased standard deviation of a single element."""
    if case.op not in ("std", "var", "var_mean", "std_mean") or case.made != "nan" or case.output is None:
        return None
    count = case.inputs[0].numel() // max(1, case.output.numel())
    if count != 1:
        return None  # of no element at all: see empty_reduction
    kind, safe = ("variance", "safe_var") if case.op.startswith("var") else ("deviation", "safe_std")
    trial = case.try_replacement("std", f"nantrap.ops.{safe}")
    divides = trial is not None and trial.finite is False
    if divides:  # by a deviation of 0
        trial = case.try_replacement("std_above_zero", f"nantrap.ops.{safe} plus {USUAL_EPS:g}")
    return Claim(
        "measured",
        f"an unbiased {'standard ' * (kind == 'deviation')}{kind} over one element is 0/0",
        ("each group holds 1 element: the unbiased estimate divides by 1 - 1 = 0",),
        trial=trial,
        shows=f"with a {kind} that is {f'{USUAL_EPS:g}' if divides else '0'} for one element the step is finite",
        help=_NOT_ZERO.format(safe=safe, kind=kind)
        if divides
        else f"correction=0, drop_last=True in the DataLoader, or nantrap.ops.{safe}(x)",
        patch=not divides,
    )


@rule("domain_error")
def domain_error(case: Case) -> Claim | None:
    """A function was given an argument for which it is not defined."""
    if case.capture is None or case.made != "nan" or not case.inputs or case.output is None:
        return None
    in_update = case.phase == "optimizer"
    if case.phase != "forward" and not in_update and not case.in_users_backward:
        return None
    x = case.inputs[-1 if case.op in ("xlogy", "special_xlog1py") else 0]
    outside = _outside_domain(case, x)
    if outside is None or not bool(outside.any()):
        return None
    bad = case.output.isnan()
    if bad.shape == outside.shape and not bool(outside[bad].all()):
        return None
    values = x[outside] if x.shape == outside.shape else x
    place = "the update" if in_update else case.place
    has: Has = "tried" if not in_update else "hint" if case.failure.optimizer.state else "measured"
    return Claim(
        # the labels or the data may have moved the argument there, and only the remedy decides; no update reads them
        has,
        f"{case.op} was given {_shown(values.flatten()[0])}, for which it is not defined, in {place}",
        (
            (
                f"{case.location.op} was given values outside its domain at {share(outside)}, from "
                f"{_shown(values.min())} to {_shown(values.max())}{all_finite(case.inputs)}"
            ),
        ),
        trial=None if in_update else case.try_replacement("domain", "an argument kept inside the domain"),
        shows="with the argument kept inside the domain the step is finite",
        help="compute the argument in a form that cannot leave the domain (var instead of E[x²] - E[x]²), or bound "
        f"it a little inside: {_BOUNDED.get(case.op, 'x.clamp(min=1e-12)')}",
    )


def _shown(value: Tensor) -> str:
    """A number with four digits, or with nine next to ±1, where four would move it into the domain."""
    number = float(value.double())
    return f"{number:.9g}" if 0 < abs(abs(number) - 1) < 1e-3 else f"{number:.4g}"


def _outside_domain(case: Case, x: Tensor) -> Tensor | None:
    """The places at which an argument lies outside the domain of the guilty function."""
    assert case.capture is not None
    if case.op in ("sqrt", "rsqrt", "log", "log2", "log10", "special_entr", "xlogy"):
        return x < 0
    if case.op in ("log1p", "special_xlog1py"):
        return x < -1
    if case.op in ("acos", "asin", "erfinv", "atanh"):
        return x.abs() > 1
    if case.op == "acosh":
        return x < 1
    if case.op == "logit":
        return (x < 0) | (x > 1)
    if case.op == "pow" and len(case.capture.args) > 1:
        exponent = case.capture.args[1]
        if isinstance(exponent, (int, float)):
            return x < 0 if exponent != int(exponent) else None
        return (x < 0).expand_as(case.output) if case.output is not None else None
    return None
