"""Calls that are steep next to a point: by their autograd node, and in the backward pass of one failure.

`family_of` knows the calls whose slope is infinite somewhere, and their safe forms. `find_amplifier` finds which
operation of the backward pass made a gradient too large for what comes after it. A gradient that leaves the range of
float16 is an overflow only where it is cast. Its size comes from further up: the slope of a call whose argument is
almost 0. The gradient is followed back from the overflow to the one operation that multiplied it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nantrap.causes.facts import absmax, limit

if TYPE_CHECKING:
    from nantrap.causes.case import Case
    from nantrap.locate.trace import Op, Trace

SINGULAR = {
    "Sqrt": ("sqrt", "sqrt", "nantrap.ops.safe_sqrt(x)"),
    "Rsqrt": ("sqrt", "rsqrt", "nantrap.ops.safe_divide(1, nantrap.ops.safe_sqrt(x))"),
    "Pow": ("pow", "x ** a with a < 1", "nantrap.ops.safe_pow(x, a)"),
    "Log": ("log", "log", "nantrap.ops.safe_log(x)"),
    "Log2": ("log", "log2", "nantrap.ops.safe_log(x)"),
    "Log10": ("log", "log10", "nantrap.ops.safe_log(x)"),
    "Log1P": ("log", "log1p", "nantrap.ops.safe_log(1 + x)"),
    "Xlogy": ("log", "x log y", "x * nantrap.ops.safe_log(y)"),
    "SpecialEntr": ("log", "entr", "-nantrap.ops.xlogx(x)"),
    "Div": ("div", "a / b", "nantrap.ops.safe_divide(a, b)"),
    "Reciprocal": ("div", "1 / x", "nantrap.ops.safe_divide(1, x)"),
    "Exp": ("exp", "exp", "an argument bounded before exp"),
    "Exp2": ("exp", "exp2", "an argument bounded before exp2"),
    "Expm1": ("exp", "expm1", "an argument bounded before expm1"),
    "LinalgVectorNorm": ("norm", "norm", "nantrap.ops.safe_norm(x)"),
    "Norm": ("norm", "norm", "nantrap.ops.safe_norm(x)"),
    "Std": ("std", "std", "nantrap.ops.safe_std(x)"),
    "StdMean": ("std", "std", "nantrap.ops.safe_std(x)"),
    "Var": ("std", "var", "nantrap.ops.safe_var(x)"),
    "VarMean": ("std", "var", "nantrap.ops.safe_var(x)"),
    "Acos": ("acos", "acos", "nantrap.ops.safe_acos(x)"),
    "Asin": ("acos", "asin", "nantrap.ops.safe_asin(x)"),
    "Hypot": ("sqrt", "hypot", "nantrap.ops.safe_sqrt(a * a + b * b)"),
    "Cdist": ("norm", "cdist", "a distance with an eps under its root"),
}


_NODE = re.compile(r"(\w+?)Backward\d+")
"""A node of PyTorch's own. One of a function that the user wrote has no number."""


def family_of(node: str) -> tuple[str, tuple[str, str, str]]:
    """A node's name in `SINGULAR`, and its entry there; an empty name and general words for any other node.

    The whole name counts: Logsumexp and Logit are no logarithm, and Acosh is no acos.
    """
    name = found.group(1) if (found := _NODE.fullmatch(node)) else ""
    if name in SINGULAR:
        return name, SINGULAR[name]
    call = "a * b" if name == "Mul" else node.removesuffix("Backward0") or "the operation"
    return "", ("sqrt", call, "a form that is safe on both branches")


def node_of(op: Op) -> str:
    """The autograd node that an operation of the forward pass makes, if that is one of `SINGULAR`; else its name."""
    name = op.name.removeprefix("aten.").rstrip("_")
    known = next((each for each in SINGULAR if each.lower() == name.replace("_", "")), "")
    return f"{known}Backward0" if known else name


def written_as(name: str) -> str:
    """The function that a name in `SINGULAR` belongs to, as it is called: `log1p`, `special_entr`."""
    return "special_entr" if name == "SpecialEntr" else name.removesuffix("Mean").lower()


_GAIN = 3e3
"""A layer multiplies a gradient by its weights and its width; one that normalises with an eps of 1e-6, by 1,000."""
_ALMOST_ZERO = 1e-3
"""Each of these calls has a slope or a value of `_GAIN` below this argument only; above it, another factor is large."""
_STEEP = {
    "aten.rsqrt": "rsqrt",
    "aten.sqrt": "sqrt",
    "aten.reciprocal": "1 / x",
    "aten.div": "a / b",
    "aten.pow": "x ** a",
    "aten.log": "log",
    "aten.native_layer_norm": "layer_norm",
    "aten.native_group_norm": "group_norm",
    "aten.native_batch_norm": "batch_norm",
    "aten._fused_rms_norm": "rms_norm",
}
"""Calls that are steep near 0: by the operation that they become, and as they are written in code."""
_FUSED = ("aten.native_layer_norm", "aten.native_group_norm", "aten.native_batch_norm", "aten._fused_rms_norm")


@dataclass(frozen=True, slots=True)
class Amplifier:
    """One operation that multiplied the gradient by `gain`, since `call` was computed next to its pole.

    `forward` is that call in the forward pass, `op` the product in the backward pass.
    """

    op: Op
    forward: Op
    call: str
    gain: float

    @property
    def reason(self) -> str:
        """Why the call is steep there."""
        if self.forward.name in _FUSED:
            return f"what {self.call} divides by is almost 0"
        return f"{self.call} was computed almost at 0"


def find_amplifier(case: Case) -> Amplifier | None:
    """The operation without whose gain the overflowing gradient would have fitted, if there is a single one."""
    trace = case.trace
    if trace is None or case.capture is None or case.capture.op.phase != "backward":
        return None
    origin = case.capture.op
    carrying = _carrying(trace)
    own = trace.op_of_node(origin.sequence)
    given = max((absmax(tensor) for tensor in case.inputs), default=0.0)
    if own is not None and own.name in _FUSED:  # product and cast in one: the reciprocal root is among its arguments
        return Amplifier(origin, own, _STEEP[own.name], given) if given >= _GAIN else None
    largest, steepest = _largest_gain(trace, origin, carrying)
    if steepest is None or largest < _GAIN or case.output is None or given / largest >= limit(case.output):
        return None
    forward = _steep_call(case, steepest, carrying)
    if forward is None or not _next_to_zero(case, forward):
        return None
    return Amplifier(steepest, forward, _STEEP[forward.name], largest)


def _largest_gain(trace: Trace, origin: Op, carrying: set[int]) -> tuple[float, Op | None]:
    """The operation before the origin that multiplied the gradient most, and by how much."""
    largest, steepest = 1.0, None
    current = origin
    while True:  # towards the loss: indices only fall
        gradients = [trace.ops[i] for i in current.sources if i in carrying and i < current.index]
        before = max(gradients, key=lambda op: op.absmax or 0.0, default=None)
        if before is None:
            return largest, steepest
        if current.absmax and before.absmax and current is not origin:
            gain = current.absmax / before.absmax
            if gain > largest:
                largest, steepest = gain, current
        current = before


def _next_to_zero(case: Case, forward: Op) -> bool:
    """Whether a call was computed next to its pole. A cube of 1,000 and 1e6 / 1 are steep as well, and no eps helps."""
    kept = case.operands_of(forward.index)
    given = [] if kept is None else kept.inputs()
    if forward.name in _FUSED or not given:
        return forward.name in _FUSED
    argument = given[-1 if forward.name == "aten.div" else 0].detach().abs()
    return bool((argument < _ALMOST_ZERO).any())


def _carrying(trace: Trace) -> set[int]:
    """The operations of the backward pass whose result is a gradient, rather than a local slope only."""
    found: set[int] = set()
    first: int | None = None
    for op in trace.ops:
        if op.phase != "backward":
            continue
        if first is None:
            first = op.sequence
        if op.sequence == first or any(source in found for source in op.sources):
            found.add(op.index)
    return found


def _steep_call(case: Case, op: Op, carrying: set[int]) -> Op | None:
    """The call of the forward pass whose slope, or whose value as a factor, `op` multiplied the gradient by."""
    assert case.trace is not None
    own = case.trace.op_of_node(op.sequence)
    if own is not None and own.name in _STEEP:
        return own
    for argument, source in enumerate(op.sources):
        if source in carrying:
            continue
        for behind in case.source_ops(op, argument)[:3]:
            if behind.name in _STEEP and behind.phase == "forward":
                return behind
    return None
