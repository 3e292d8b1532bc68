"""NT4xx: constants that half precision rounds away, and masks near the end of its range."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap.causes.case import HALF
from nantrap.causes.claim import Claim, Remedy, rule
from nantrap.causes.facts import absmax, limit, rounded, share
from nantrap.causes.rules.domains import log_space_remedies
from nantrap.causes.rules.half_forward import in_float32
from nantrap.causes.steep import family_of

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case
    from nantrap.locate.trace import Op

_PRODUCTS = ("addmm", "mm", "bmm", "baddbmm", "convolution", "einsum", "embedding", "scaled_dot", "native_")
_FILLS = frozenset(("masked_fill", "where", "full", "full_like", "fill", "triu", "tril", "mul", "rsub", "scatter"))
_SLOPES = ("Sqrt", "Pow", "Rsqrt", "Log", "Log2", "Log10", "Log1P", "Div", "Reciprocal", "LinalgVectorNorm")
_MOST_BEFORE = 30
_GUARDS = ("aten.add", "aten.clamp", "aten.clamp_min", "aten.clamp_max", "aten.maximum", "aten.sub", "aten.rsub")
_ZERO_POLES = ("div", "true_divide", "log", "log2", "log10", "log1p", "rsqrt", "reciprocal", "pow")
_BOUND = 0.5
"""A constant above this is next to 1: a bound, not an epsilon."""
_END_POLES = {"logit": (0.0, 1.0), "atanh": (-1.0, 1.0), "erfinv": (-1.0, 1.0)}
"""Infinite at both ends of their domain."""


@rule("mask_overflow", ops=("add", "sub", "rsub", "baddbmm", "addmm"), made="inf")
def mask_overflow(case: Case) -> Claim | None:
    """A mask value near the dtype's limit overflowed when something was added."""
    if case.output is None:
        return None
    top = limit(case.output)
    addends = case.inputs[:1] if case.op in ("baddbmm", "addmm") else case.inputs
    extreme = [t for i, t in enumerate(addends) if _is_mask(t, 0.5 * top) and _was_filled_in(case, t, i)]
    scalars = [abs(number) for number in (case.capture.op.scalars if case.capture else ()) if abs(number) >= 0.5 * top]
    if not (extreme or scalars) or not bool(case.output.isneginf().any()):
        return None
    value = max([absmax(t) for t in extreme] + scalars)
    also = ((case.lab.single_precision(), "in float32 the step is finite"),) if case.half else ()
    return Claim(
        "measured",
        f"a mask of {'finfo.min' if value == top else f'-{value:.4g}'} plus something is -Inf in {case.dtype}",
        (
            (
                f"{case.location.op} adds to a mask of -{value:.4g}; the limit of {case.dtype} is {top:.4g}, so the "
                f"sum "
                f"is -Inf"
            ),
        ),
        also=also,
        help="mask with masked_fill on a boolean mask once, or with finfo(dtype).min / 2; never add two such masks",
    )


@rule("eps_underflow_half", phase="forward", ops=(*_ZERO_POLES, *_END_POLES), dtype=HALF)
def eps_underflow_half(case: Case) -> Claim | None:
    """A value or an epsilon is rounded away in half precision."""
    if case.output is None:
        return None
    pole, zero = _at_pole(case)
    if not bool(zero.any()) or (case.op == "pow" and not _negative_exponent(case)):
        return None
    trial = case.lab.single_precision()
    constants = _tiny_constants(case)
    facts = [f"the argument of {case.location.op} is exactly {pole:g} at {share(zero)} in {case.dtype}"]
    if constants:
        facts.append(f"in {case.dtype} {_as_rounded(constants[:2], case.output)}")
    # a slope of 1/eps may be too large for half-precision weights even where the value is repaired
    swallowed = case.capture is not None and _swallowed(case, case.capture.op, len(case.capture.op.sources) - 1)
    if trial.finite is False and not swallowed:
        case.refute("eps_underflow_half", trial, "the step is as bad in float32")
        return None
    if not trial.finite and not constants and case.failure.repeatable:
        return None
    failed = trial.finite is False
    lost = f"an epsilon has no effect in {case.dtype}" if constants or swallowed else f"rounded away in {case.dtype}"
    return Claim(
        "measured" if swallowed else "tried",
        f"{lost}: the argument of {case.op} is exactly {pole:g}",
        tuple(facts),
        trial=None if failed else trial,
        shows="the same step in float32 is finite",
        remedies=_remedies(case),
    )


def _as_rounded(constants: list[float], like: Tensor) -> str:
    """`1e-08 is 0`: what becomes of constants in a dtype."""
    return ", ".join(f"{value:g} is {rounded(value, like):g}" for value in constants)


def _at_pole(case: Case) -> tuple[float, Tensor]:
    """The pole that the guilty operation was given, and at which places."""
    argument = case.inputs[-1] if case.op in ("div", "true_divide") else case.inputs[0]
    poles = _END_POLES.get(case.op, (-1.0 if case.op == "log1p" else 0.0,))
    pole = next((end for end in poles if bool((argument == end).any())), poles[0])
    return pole, argument == pole


def _remedies(case: Case, forward: Op | None = None) -> tuple[Remedy, ...]:
    """What keeps the argument from the pole, each tried: log space, an eps that the dtype holds, lines in float32.

    Args:
        case: the failure.
        forward: the call whose slope it is, where the backward pass failed.
    """
    op = forward if forward is not None or case.capture is None else case.capture.op
    remedies = [] if forward is not None else list(log_space_remedies(case))
    name = "" if forward is None else forward.name.removeprefix("aten.")
    if "norm" not in name:
        again = op is not None and op.place is not None and case.failure.repeatable
        trial = case.lab.replaced(op.place.source(), "held") if again and op is not None and op.place else None
        remedies.append(case.remedy("held", trial, name))
    return (*remedies, *in_float32(case, op))


@rule("eps_underflow_half", phase="backward")
def swallowed_before_the_slope(case: Case) -> Claim | None:
    """`sqrt(x + 1e-8)` in float16: the value is 0 and fine, the slope is infinite. `log1p(-p.clamp(max=1 - 1e-6))` in
    bfloat16: what makes the value harmless does not make the slope so."""
    if case.capture is None or case.trace is None or family_of(case.node)[0] not in _SLOPES:
        return None
    forward = case.trace.op_of_node(case.capture.op.sequence)
    constant = _swallowed(case, forward, 0) if forward is not None else None
    if forward is None or constant is None:
        return None
    trial = case.lab.single_precision()
    if trial.finite is False:
        case.refute("eps_underflow_half", trial, "the step is as bad in float32")
        return None
    pole = "-1" if forward.name == "aten.log1p" else "0"
    dtype = str(forward.dtype)
    nearest = _nearest(constant, dtype)
    return Claim(
        "tried",
        f"{_what(constant)} of {constant:g} has no effect in {dtype}: the slope of {forward.name} is infinite",
        (
            f"{constant:g} is {nearest:g} in {dtype}, so nothing keeps the argument of {forward.name} from {pole}",
            f"{case.node}: its derivative is infinite at exactly {pole}",
        ),
        trial=trial,
        shows="the same step in float32 is finite",
        remedies=_remedies(case, forward),
    )


def _swallowed(case: Case, op: Op, argument: int) -> float | None:
    """The constant that was to keep an argument from a pole (added, or a bound) and that rounds to 0, or as a bound to
    1 or -1, in the dtype it was used in."""
    for behind in case.source_ops(op, argument)[:3]:
        if behind.name.rstrip("_") in _GUARDS and behind.dtype in HALF:
            for number in behind.scalars:
                nearest = _nearest(number, str(behind.dtype))
                if number != nearest and (nearest == 0.0 or (abs(nearest) == 1.0 and "clamp" in behind.name)):
                    return number
    return None


def _nearest(number: float, dtype: str) -> float:
    """What a number becomes in a dtype."""
    import torch

    return float(torch.tensor(number, dtype=getattr(torch, dtype)))


def _what(constant: float) -> str:
    """What a constant that was rounded away was to be."""
    return "an epsilon" if abs(constant) < _BOUND else "a bound"


def _negative_exponent(case: Case) -> bool:
    exponent = case.capture.args[1] if case.capture is not None and len(case.capture.args) > 1 else None
    return isinstance(exponent, (int, float)) and exponent < 0


def _is_mask(tensor: Tensor, extreme: float) -> bool:
    """Whether the tensor's extreme values are one and the same constant: written by a person, not grown."""
    values = tensor.detach()[tensor.detach() <= -extreme]
    return values.numel() > 0 and bool((values == values[0]).all()) and not bool((tensor >= extreme).any())


def _was_filled_in(case: Case, tensor: Tensor, argument: int) -> bool:
    """Whether the extreme value was put there: the end of a dtype, a constant, or the work of a fill. An activation
    that grew to it is no mask."""
    import torch

    lowest = float(tensor.detach().min())
    ends = [torch.finfo(dtype).min for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)]
    if any(lowest in (end, end / 2) for end in ends) or lowest == -limit(tensor):
        return True
    if case.trace is None or case.capture is None or argument >= len(case.capture.op.sources):
        return False
    made_by = [op.name.removeprefix("aten.").rstrip("_") for op in case.source_ops(case.capture.op, argument)]
    return not any(name.startswith(_PRODUCTS) for name in made_by) and (not made_by or bool(_FILLS & set(made_by)))


def _tiny_constants(case: Case) -> list[float]:
    """Constants that went into the argument of the origin and that the dtype rounds to 0 or to 1."""
    if case.trace is None or case.capture is None or case.output is None:
        return []
    sources = case.capture.op.sources
    into = sources[-1:] if case.op in ("div", "true_divide") else sources[:1]
    behind = case.trace.behind(into, lambda op: op.phase == "forward", most=_MOST_BEFORE)
    found = []
    for op in sorted(behind, key=lambda op: op.index):
        for number in op.scalars:
            nearest = rounded(number, case.output)
            if number != nearest and nearest in (0.0, 1.0):
                found.append(number)
    return found
