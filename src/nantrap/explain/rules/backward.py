"""NT3xx: mathematics of the backward pass. The forward was finite, or what was bad in it was thrown away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nantrap.explain.facts import share
from nantrap.explain.proofs import add_proof, fix_for, try_replacement
from nantrap.explain.registry import rule
from nantrap.incident import Cause, Evidence, Fix

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.explain.case import Case
    from nantrap.locate.trace import Op

_SELECTING = (
    "Where",
    "Index",
    "MaskedFill",
    "MaskedSelect",
    "MaskedScatter",
    "Select",
    "Slice",
    "Gather",
    "Split",
    "Unbind",
)
_COMPARISONS = (
    "gt",
    "ge",
    "lt",
    "le",
    "eq",
    "ne",
    "logical_not",
    "logical_and",
    "logical_or",
    "bitwise_not",
    "isfinite",
)
_SINGULAR = {
    "Sqrt": ("sqrt", "sqrt", "nantrap.ops.safe_sqrt(x)"),
    "Rsqrt": ("sqrt", "rsqrt", "nantrap.ops.safe_sqrt(x)"),
    "Pow": ("pow", "x ** a with a < 1", "nantrap.ops.safe_pow(x, a)"),
    "Log": ("log", "log", "nantrap.ops.safe_log(x)"),
    "Div": ("div", "a / b", "nantrap.ops.safe_divide(a, b)"),
    "Reciprocal": ("div", "1 / x", "nantrap.ops.safe_divide(1, x)"),
    "Exp": ("exp", "exp", "an argument bounded before exp"),
    "LinalgVectorNorm": ("norm", "norm", "nantrap.ops.safe_norm(x)"),
    "Norm": ("norm", "norm", "nantrap.ops.safe_norm(x)"),
    "Std": ("std", "std", "nantrap.ops.safe_std(x)"),
    "Var": ("std", "var", "nantrap.ops.safe_var(x)"),
    "Acos": ("acos", "acos", "nantrap.ops.safe_acos(x)"),
    "Asin": ("acos", "asin", "nantrap.ops.safe_asin(x)"),
    "Hypot": ("sqrt", "hypot", "nantrap.ops.safe_sqrt(a * a + b * b)"),
    "Cdist": ("norm", "cdist", "a distance with an eps under its root"),
}


@dataclass(frozen=True, slots=True)
class Incoming:
    """Where a gradient of exactly 0 met an infinite derivative: the operation, which argument it was, at how many places."""

    op: Op
    argument: int
    count: int


@rule("where_unselected_branch")
def where_unselected_branch(case: Case) -> Cause | None:
    """A branch that was not selected put NaN into the gradient."""
    if case.phase != "backward" or case.capture is None or case.trace is None:
        return None
    incoming = _incoming_gradient(case)
    if incoming is None:
        return None
    selector = _selector(case, incoming)
    if selector is None:
        return None
    name, (family, call, safe) = _family(case.node)
    evidence = [
        Evidence(
            f"the gradient that reaches {case.node} is exactly 0 at all {incoming.count:,} bad places: they were not selected"
        ),
        Evidence(
            f"the local derivative of {call} is infinite there, and 0 · Inf = NaN; the zeros come from {selector}"
        ),
    ]
    trial = try_replacement(case, family, safe) if family != "norm" else None
    add_proof(evidence, trial, "with an argument that is safe on both branches the step is finite")
    return Cause(
        "where_unselected_branch",
        proven=True,
        confidence=0.95,
        summary=f"the branch of {call} that was not selected put NaN into the gradient",
        evidence=tuple(evidence),
        fix=fix_for(
            case,
            f"select before the operation, not after it: {call}(torch.where(ok, x, 1.0)), then torch.where on the result; or {safe}",
            trial,
            patch=True,
        ),
    )


@rule("arccos_boundary")
def arccos_boundary(case: Case) -> Cause | None:
    """The derivative of acos or asin is infinite at ±1."""
    if case.phase != "backward" or not case.node.startswith(("Acos", "Asin")):
        return None
    call = "acos" if case.node.startswith("Acos") else "asin"
    evidence = [Evidence(f"{case.node} computes 1/√(1 - x²), which is 1/√0 where x is exactly ±1")]
    if case.output is not None:
        evidence[0] = Evidence(
            f"{case.node} computes 1/√(1 - x²), and x is exactly ±1 at {share(~case.output.isfinite())}"
        )
    trial = try_replacement(case, "acos", f"nantrap.ops.safe_{call}")
    add_proof(evidence, trial, "with a bounded slope the step is finite")
    return Cause(
        "arccos_boundary",
        proven=True,
        confidence=0.94,
        summary=f"the derivative of {call} is infinite at ±1",
        evidence=tuple(evidence),
        fix=fix_for(
            case,
            f"nantrap.ops.safe_{call}(x), atan2, or clamp to ±(1 - 1e-6); clamping to [-1, 1] does not help",
            trial,
            patch=True,
        ),
    )


@rule("degenerate_linalg_backward")
def degenerate_linalg_backward(case: Case) -> Cause | None:
    """The gradient of a decomposition with a repeated or zero spectrum."""
    if case.phase != "backward" or not any(
        word in case.node for word in ("Linalg", "Svd", "Eigh", "Cholesky", "Qr", "Eig")
    ):
        return None
    if "VectorNorm" in case.node or case.trace is None:
        return None
    gap = _smallest_gap(case)
    evidence = [Evidence(f"{case.node} divides by differences of singular or eigen-values")]
    if gap is not None:
        evidence.append(Evidence(f"the smallest gap in the spectrum is {gap:.3g}"))
    return Cause(
        "degenerate_linalg_backward",
        proven=gap is not None and gap < 1e-5,
        confidence=0.93,
        summary="the gradient of a decomposition with a repeated or zero spectrum is infinite",
        evidence=tuple(evidence),
        fix=Fix(
            text="add a small diagonal jitter before decomposing (x + 1e-6·diag(1..n)), or use only quantities whose gradient does "
            "not need the vectors (svdvals, slogdet)"
        ),
    )


@rule("singular_gradient_at_zero")
def singular_gradient_at_zero(case: Case) -> Cause | None:
    """The derivative is infinite at exactly zero."""
    if (
        case.phase != "backward"
        or case.capture is None
        or case.half
        and case.any_half
        and not case.node.startswith(tuple(_SINGULAR))
    ):
        return None
    name, (family, call, safe) = _family(case.node)
    if not name or name in ("Acos", "Asin", "Exp"):
        return None
    if case.made == "inf" and case.op in ("mm", "bmm", "addmm", "mul", "convolution_backward"):
        return None
    evidence = [Evidence(f"{case.node}: the derivative of {call} is infinite at exactly 0, {_zeros(case)}")]
    trial = try_replacement(case, family, safe) if family != "norm" else None
    proven = add_proof(evidence, trial, "with a slope bounded at 0 the step is finite")
    return Cause(
        "singular_gradient_at_zero",
        proven=proven or bool(_zero_divisor(case)),
        confidence=0.9 if proven or _zero_divisor(case) else 0.5,
        summary=f"the derivative of {call} is infinite at exactly zero",
        evidence=tuple(evidence),
        fix=fix_for(
            case,
            f"{safe}, or an eps inside: sqrt(x + 1e-12) (an eps outside, sqrt(x) + eps, changes nothing)",
            trial,
            patch=True,
        ),
    )


# ---- what the captured operation tells


def _family(node: str) -> tuple[str, tuple[str, str, str]]:
    for name, entry in _SINGULAR.items():
        if node.startswith(name) and not node.startswith("LogSoftmax"):
            return name, entry
    return "", ("sqrt", node.removesuffix("Backward0") or "the operation", "a form that is safe on both branches")


def _incoming_gradient(case: Case) -> Incoming | None:
    """The gradient that came into the node at the bad places, where the captures tell it to be exactly 0 there."""
    if case.output is None or case.capture is None or case.trace is None:
        return None
    origin = case.capture.op
    # the quotient or product with the gradient is the origin itself, or follows it in the same node where the local
    # derivative overflowed first
    for index, capture in case.trace.captures.items():
        op = capture.op
        name = op.name.rstrip("_")
        if index < origin.index or op.sequence != origin.sequence or name not in ("aten.mul", "aten.div"):
            continue
        bad = ~capture.outputs[0].isfinite()
        inputs = capture.inputs()
        for argument in range(1 if name == "aten.div" else len(inputs)):  # a quotient's gradient stands on top
            candidate = inputs[argument]
            if candidate.shape == bad.shape and bool(bad.any()) and bool((candidate[bad] == 0).all()):
                return Incoming(op, argument, int(bad.sum()))
    return None


def _selector(case: Case, incoming: Incoming) -> str | None:
    """The node that made those zeros, back along the gradient: a `where`, an index, a product with a mask."""
    trace = case.trace
    assert trace is not None
    queue = [incoming.op.sources[incoming.argument]] if incoming.argument < len(incoming.op.sources) else []
    seen: set[int] = set()
    while queue and len(seen) < 24:
        index = queue.pop(0)
        if index < 0 or index in seen:
            continue
        seen.add(index)
        op = trace.ops[index]
        if op.phase != "backward":
            continue
        if op.node is not None and op.node.startswith(_SELECTING):
            return op.node
        if op.node is not None and op.node.startswith("Mul") and _is_mask_product(case, op):
            return op.node
        queue += op.sources
    return None


def _is_mask_product(case: Case, op: Op) -> bool:
    """Whether the forward product of this node had a comparison or a boolean as a factor."""
    trace = case.trace
    assert trace is not None
    made_by = next((o for o in trace.ops if o.phase == "forward" and o.sequence == op.sequence), None)
    if made_by is None:
        return False
    for argument in range(len(made_by.sources)):
        names = [o.name.removeprefix("aten.") for o in case.source_ops(made_by, argument)[:3]]
        if any(name in _COMPARISONS for name in names):
            return True
    return False


def _zero_divisor(case: Case) -> bool:
    if case.op in ("div", "true_divide") and len(case.inputs) > 1:
        return bool((case.inputs[1] == 0).any())
    if case.op in ("pow", "rsqrt", "reciprocal", "log") and case.inputs:
        return bool((case.inputs[0] == 0).any())
    return False


def _zeros(case: Case) -> str:
    if case.op in ("div", "true_divide") and len(case.inputs) > 1:
        return f"its saved value is 0 at {share(case.inputs[1] == 0)}"
    if case.inputs:
        return f"its saved value is 0 at {share(case.inputs[0] == 0)}"
    return "which was reached here"


def _smallest_gap(case: Case) -> float | None:
    assert case.trace is not None
    gaps = []
    for witness in case.trace.witnesses.values():
        if "linalg" not in witness.op.name or witness.op.phase != "forward":
            continue
        for output in witness.outputs:
            if output.dim() >= 1 and not output.is_complex() and output.is_floating_point() and _is_spectrum(output):
                values = output.detach().double().sort(dim=-1).values
                scale = float(values.abs().max()) or 1.0
                gaps.append(float(values.diff(dim=-1).abs().min()) / scale)
                gaps.append(float(values.abs().min()) / scale)
    return min(gaps) if gaps else None


def _is_spectrum(tensor: Tensor) -> bool:
    """Singular or eigen-values rather than vectors: sorted along the last dimension."""
    steps = tensor.detach().diff(dim=-1)
    return tensor.shape[-1] > 1 and bool((steps <= 0).all() or (steps >= 0).all())
