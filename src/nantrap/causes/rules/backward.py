"""NT3xx: mathematics of the backward pass. The forward was finite, or what was bad in it was dropped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nantrap.causes.amplifier import find_amplifier
from nantrap.causes.claim import Claim
from nantrap.causes.facts import USUAL_EPS, share
from nantrap.causes.registry import rule
from nantrap.causes.rules.decompositions import is_decomposition

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.amplifier import Amplifier
    from nantrap.causes.case import Case
    from nantrap.incident import Trial
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
    "Clamp",
    "Minimum",
    "Maximum",
    "Hardtanh",
)
_MASKS = (
    "gt", "ge", "lt", "le", "eq", "ne", "logical_not", "logical_and", "logical_or", "bitwise_not", "isfinite",
    "eye", "tril",
    "triu", "ones", "zeros", "ones_like", "zeros_like", "one_hot", "full", "bernoulli",
)  # fmt: skip
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


_INSIDE = {
    "sqrt": ("sqrt(x + 1e-12)", "sqrt(x) + eps"),
    "pow": ("(x + 1e-12) ** a", "x ** a + eps"),
    "log": ("log(x + 1e-12)", "log(x) + eps"),
    "div": ("a / (b + 1e-6)", "a / b + eps"),
    "norm": ("sqrt(x.square().sum() + 1e-12)", "x.norm() + eps"),
    "std": ("sqrt(x.var() + 1e-12)", "x.std() + eps"),
}
"""Where an eps helps, and where it does not."""
_NEXT_TO_ZERO = 1e-4
_FILLS = ("zeros", "zeros_like", "new_zeros", "full", "full_like", "scalar_tensor", "ones", "ones_like")


@dataclass(frozen=True, slots=True)
class Incoming:
    """Where a gradient of exactly 0 was multiplied by an infinite derivative: the operation, which argument it was, at
    how many places."""

    op: Op
    argument: int
    count: int
    bad: Tensor | None = None


@rule("where_unselected_branch")
def where_unselected_branch(case: Case) -> Claim | None:
    """A branch that was not selected put NaN into the gradient.

    `torch.where(ok, f(x), 0)` was meant to avoid the bad places of f. It does so in the forward pass. In the backward
    pass both branches get a gradient: the unselected places get 0, which is multiplied by the slope of f there, and 0
    · Inf is NaN. An index after the fact or a product with a mask behaves the same.

    Example:
        import torch

        model = torch.nn.Linear(4, 6, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.randn(8, 4) for _ in range(2)]
        batches[1][3] = 0.0  # a silent frame: its energy is exactly 0

        def loss_fn(batch):
            energy = model(batch).square()
            level = torch.where(energy > 0, energy.log(), torch.zeros_like(energy))
            return level.mean()

    Why:
        The gradient of where(c, a, b) with respect to a is where(c, g, 0): a 0, and not "no gradient". The chain rule
        continues and multiplies by f'(x), which is Inf or NaN there. Autograd cannot leave a place out.

    Fix:
        Select before the operation as well, so that it never sees a bad argument:

            - y = torch.where(x > 0, x.log(), 0.0)
            + ok = x > 0
            + y = torch.where(ok, torch.where(ok, x, 1.0).log(), 0.0)

        or use the safe form, `nantrap.ops.safe_log(x)`. `nan_to_num` on the loss changes nothing, since the loss is
        finite. Zeroing NaN gradients in a hook throws away the good part of the gradient with the bad one.

    Proof:
        At all bad places the gradient that reaches the node is exactly 0 and the local derivative is infinite, and
        those zeros come from a `where`, an index or a mask product: a measurement along the gradient. The call is
        then replaced at its own line by one that is finite on both branches.
    """
    if case.phase != "backward" or case.trace is None or is_decomposition(case.node):
        return None
    if case.location.replay is not None and case.location.replay.dropped is not None:
        return _dropped_branch(case, case.location.replay.dropped)
    found = next(((i, node) for i in _zero_gradients(case) if (node := _selector(case, i)) is not None), None)
    if found is None:
        return None
    incoming, (selector, seen) = found
    _, (family, call, safe) = _family(case.node)
    selected = f", and so it is where it leaves {selector}: they were not selected" if seen else ""
    return Claim(
        "measured" if seen else "hint",
        f"the branch of {call} that was not selected put NaN into the gradient",
        (
            f"the gradient that reaches {case.node} is exactly 0 at all {incoming.count:,} bad places{selected}",
            f"the local derivative of {call} is infinite there, and 0 · Inf = NaN",
        ),
        trial=case.try_replacement(family, safe) if family != "norm" else None,
        shows="with an argument that is safe on both branches the step is finite",
        help=f"select before the operation, not after it: {call}(torch.where(ok, x, 1.0)), then torch.where on the "
        f"result; "
        f"or {safe}",
        patch=True,
    )


def _dropped_branch(case: Case, index: int) -> Claim | None:
    """The forward result was NaN at places that never reached the loss; its derivative brought it back."""
    assert case.trace is not None
    capture = case.trace.captures.get(index)
    if capture is None:
        return None
    _, (family, call, safe) = _family(case.node)
    return Claim(
        "measured",
        f"the branch of {call} that was not selected put NaN into the gradient",
        (
            f"{capture.op.name} gave NaN at {share(capture.outputs[0].isnan())}, and the loss is finite: dropped",
            f"{case.node} multiplies the gradient of exactly 0 that those places get by NaN, and 0 · NaN = NaN",
        ),
        trial=case.try_replacement(family, safe),
        shows="with an argument that is safe on both branches the step is finite",
        help=f"select before the operation, not after it: {call}(torch.where(ok, x, 1.0)), then torch.where on the "
        f"result",
    )


@rule("arccos_boundary")
def arccos_boundary(case: Case) -> Claim | None:
    """The derivative of acos or asin is infinite at ±1.

    The angle between two equal (or opposite) directions was computed by acos, or an Euler angle by asin at the pole.
    The value, 0 or π, is right. The slope there is infinite, and the gradient becomes Inf or NaN.

    Example:
        import torch

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.randn(4, 3), torch.randn(4, 3) * 100]  # the second one saturates tanh: exactly ±1

        def loss_fn(batch):
            cosine = torch.tanh(model(batch))
            return torch.acos(cosine).mean()

    Why:
        d acos(x)/dx = -1/√(1 - x²), which is -1/0 at x = ±1. Rounding is enough: the cosine of two nearly equal
        float32 vectors is often exactly 1, and sometimes 1.0000001, for which acos itself is NaN.

    Fix:
        Use a form that is smooth there:

            - angle = torch.acos((a * b).sum(-1))
            + angle = 2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))

        or bound the slope with `nantrap.ops.safe_acos(x)`. `x.clamp(-1, 1)` is the common fix, and it repairs only the
        value: at exactly ±1 clamp passes the gradient on, and the slope is as infinite as before. `x.clamp(-1 + 1e-6, 1
        - 1e-6)` works in float32; in half precision 1 - 1e-6 is 1 (NT404).

    Proof:
        The bad values are exactly where the saved argument is ±1, in AcosBackward0 or AsinBackward0: a measurement.
        The call is then replaced at its own line by one with a bounded slope, and the step must be finite.
    """
    if case.phase == "forward":
        return _just_outside(case)
    if case.phase != "backward" or not case.node.startswith(("Acos", "Asin")) or case.output is None:
        return None
    call = "acos" if case.node.startswith("Acos") else "asin"
    return Claim(
        "measured",
        f"the derivative of {call} is infinite at ±1",
        (f"{case.node} computes 1/√(1 - x²), and x is exactly ±1 at {share(~case.output.isfinite())}",),
        trial=case.try_replacement("acos", f"nantrap.ops.safe_{call}"),
        shows="with a bounded slope the step is finite",
        help=f"nantrap.ops.safe_{call}(x), atan2, or clamp to ±(1 - 1e-6); clamping to [-1, 1] does not help",
        patch=True,
    )


@rule("singular_gradient_at_zero")
def singular_gradient_at_zero(case: Case) -> Claim | None:
    """The derivative is infinite at exactly zero.

    The loss is finite, the gradient is not: sqrt, a power below 1 or a norm or deviation built from them was computed
    at exactly 0, where its slope is infinite. Distances between equal points, norms of padded rows and the magnitude
    of silence are the usual zeros.

    Example:
        import torch

        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.randn(5, 3) for _ in range(2)]

        def loss_fn(batch):
            z = model(batch)
            squared = (z[:, None] - z[None, :]).square().sum(-1)  # 0 on the diagonal
            return squared.sqrt().mean()

    Why:
        The slope of √x is 1/(2√x), which is Inf at 0. The chain rule multiplies it by the inner derivative, 2·(z - z)
        = 0, and Inf · 0 is NaN. `torch.norm` and `torch.std` define their slope as 0 there; the same formula written
        by hand does not.

    Fix:
        Keep the argument away from 0, inside the root:

            - distance = squared.sqrt()
            + distance = (squared + 1e-12).sqrt()

        `nantrap.ops.safe_sqrt(x)`, `safe_norm`, `safe_pow` and `safe_std` have the exact value and a slope of 0 at 0.
        What does not help: an eps outside, `sqrt(x) + eps`, changes nothing. `torch.where(x > 0, x.sqrt(), 0)` is NaN
        too (NT303). Zeroing NaN gradients in a hook trains on a wrong direction, and Adam's momentum and weight decay
        move the weights even with a gradient of 0.

    Proof:
        The value that the autograd node saved is exactly 0 at the bad places, in a pass whose forward was finite. The
        call is then replaced at its own line by one with a bounded slope, and the step must be finite. Next to 0 the
        slope is finite and may still be too much for float16: the gradient is then followed back from the overflow to
        the one operation that multiplied it, and the step must be finite with a larger eps there.
    """
    if case.phase != "backward" or case.capture is None:
        return None
    if case.dtype == "float16" and case.made == "inf" and (steep := find_amplifier(case)) is not None:
        return _too_steep_for_half(case, steep)
    if case.half and case.any_half and not case.node.startswith(tuple(_SINGULAR)):
        return None
    name, (family, call, safe) = _family(case.node)
    if not name or name in ("Acos", "Asin", "Exp"):
        return None
    if case.made == "inf" and case.op in ("mm", "bmm", "addmm", "convolution_backward"):
        return None
    inside, outside = _INSIDE[family]
    nearest = _nearest_to_zero(case)
    if nearest is None:
        return None
    exact = nearest == 0.0
    if not exact and (case.made != "inf" or nearest > _NEXT_TO_ZERO):
        return None
    where = "at exactly zero" if exact else f"next to zero, at {nearest:.3g}"
    grows = "is infinite" if exact else "leaves the range of the dtype"
    return Claim(
        "tried" if case.failed.repeatable and family != "norm" else "measured",
        f"the derivative of {call} {grows} {where}",
        (f"{case.node}: the derivative of {call} {grows} {where}; {_zeros(case)}",),
        trial=case.try_replacement(family if exact else "floor", safe) if family != "norm" else None,
        shows="with a bounded slope the step is finite",
        help=f"{safe}, or an eps inside: {inside} (an eps outside, {outside}, changes nothing)",
        patch=exact,
    )


def _too_steep_for_half(case: Case, steep: Amplifier) -> Claim:
    """The slope next to 0 is finite, and the gradient that it makes does not fit float16."""
    place = steep.forward.place
    trial = None
    if place is not None and case.failed.repeatable:
        trial = case.lab.replaced(place.source(), "floor", f"an eps of {USUAL_EPS:g} for {steep.call}")
    also: tuple[tuple[Trial, str], ...] = ()
    if trial is not None and not trial.finite:
        also = ((case.lab.single_precision(), "in float32 the same gradient is finite"),)
    line = "" if place is None else f" in line {place.line} of {place.source().function}"
    return Claim(
        "tried",
        f"the slope of {steep.call} next to zero makes a gradient that float16 cannot hold",
        (
            f"{steep.op.node} multiplies the gradient by up to {steep.gain:.2g}: {steep.reason}",
            f"{case.location.op} writes it in float16, which ends at 65,504; without that factor it fits",
        ),
        trial=trial,
        shows=f"with an eps of {USUAL_EPS:g} there the step is finite",
        also=also,
        help=f"a larger eps for {steep.call}{line}, for example {USUAL_EPS:g}: one that float32 holds may still be "
        "too small for the gradient in float16 (a GradScaler only multiplies it further)",
    )


# ---- what the captured operation shows


def _family(node: str) -> tuple[str, tuple[str, str, str]]:
    for name, entry in _SINGULAR.items():
        if node.startswith(name) and not node.startswith("LogSoftmax"):
            return name, entry
    return "", ("sqrt", node.removesuffix("Backward0") or "the operation", "a form that is safe on both branches")


def _zero_gradients(case: Case) -> Iterator[Incoming]:
    """Where in the guilty node a gradient of exactly 0 was multiplied by an infinite derivative, as far as the captures
    show it.

    That is the origin itself, or a later product where the local derivative overflowed first.
    """
    if case.capture is None or case.trace is None:
        return
    origin = case.capture.op
    for index, capture in case.trace.captures.items():
        op = capture.op
        name = op.name.rstrip("_")
        if index < origin.index or op.sequence != origin.sequence or name not in ("aten.mul", "aten.div"):
            continue
        bad = ~capture.outputs[0].isfinite()
        inputs = capture.inputs()
        for argument in range(1 if name == "aten.div" else len(inputs)):  # a quotient's gradient is the numerator
            candidate = inputs[argument]
            if candidate.shape == bad.shape and bool(bad.any()) and bool((candidate[bad] == 0).all()):
                yield Incoming(op, argument, int(bad.sum()), bad)


def _selector(case: Case, incoming: Incoming) -> tuple[str, bool] | None:
    """The node that made those zeros, back along the gradient: a `where`, a clamp, an index, a product with a mask.

    The gradient must be exactly 0 at the bad places where it leaves that node already. Zeros that are multiplied in
    afterwards (log of 1, a weight of 0) belong to places that were selected. The second value: whether that could be
    checked.
    """
    trace = case.trace
    assert trace is not None
    queue = [incoming.op.sources[incoming.argument]] if incoming.argument < len(incoming.op.sources) else []
    seen: set[int] = set()
    rejected: set[int] = set()
    while queue and len(seen) < 24:
        index = queue.pop(0)
        if index < 0 or index in seen:
            continue
        seen.add(index)
        op = trace.ops[index]
        if op.phase != "backward" or op.sequence in rejected or op.name.removeprefix("aten.") in _FILLS:
            continue
        selects = op.node is not None and op.node.startswith(_SELECTING)
        selects = selects or (op.node is not None and op.node.startswith("Mul") and _is_mask_product(case, op))
        leaves_zero = _leaves_zero(case, op, incoming) if selects else False
        if leaves_zero is not False:
            return str(op.node), bool(leaves_zero)
        if selects:
            rejected.add(op.sequence)
        queue += op.sources
    return None


def _leaves_zero(case: Case, op: Op, incoming: Incoming) -> bool | None:
    """Whether the gradient is exactly 0 at all bad places when it leaves the selecting operation; `None` if unknown."""
    kept = case.operands_of(op.index)
    if kept is None or not kept.outputs or incoming.bad is None:
        return None  # it cannot be checked again: only the kind of the node is known
    leaving = kept.outputs[0]
    if leaving.numel() == incoming.bad.numel():
        return bool((leaving.reshape(incoming.bad.shape)[incoming.bad] == 0).all())
    if leaving.numel() > incoming.bad.numel() or not leaving.numel():
        return True
    try:
        return bool((leaving.expand_as(incoming.bad)[incoming.bad] == 0).all())
    except RuntimeError:
        return True


def _is_mask_product(case: Case, op: Op) -> bool:
    """Whether a factor of the node's forward product was a mask: a comparison, a triangle, a constant of
    the program."""
    trace = case.trace
    assert trace is not None
    made_by = trace.op_of_node(op.sequence)
    if made_by is None:  # the two-line form: the node's own saved factors, if they were kept
        from nantrap.locate.kept import LossPart

        part = case.failed.evidence
        factors = part.saved_by(op.sequence) if isinstance(part, LossPart) else ()
        return any(bool(((factor == 0) | (factor == 1)).all()) for factor in factors)
    for argument in range(len(made_by.sources)):
        if made_by.sources[argument] < 0 and argument > 0:
            return True  # came from outside the step: a constant, or a mask of the batch
        names = [o.name.removeprefix("aten.") for o in case.source_ops(made_by, argument)[:3]]
        if any(name in _MASKS for name in names):
            return True
    return False


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


def _just_outside(case: Case) -> Claim | None:
    """acos of 1.0000001: rounding moved a cosine just outside the domain, and the value itself is NaN."""
    if case.op not in ("acos", "asin") or case.made != "nan" or not case.inputs:
        return None
    beyond = case.inputs[0].abs().double() - 1
    worst = float(beyond.max())
    if not 0 < worst <= 1e-3:
        return None
    return Claim(
        "measured",
        f"{case.op} was given {1 + worst:.9g}: rounding moved it beyond ±1",
        (f"{case.location.op} was given values beyond ±1 at {share(beyond > 0)}, by {worst:.3g} at most",),
        trial=case.try_replacement("domain", f"nantrap.ops.safe_{case.op}"),
        shows="with its argument kept within ±(1 - 1e-6) the step is finite",
        help=f"nantrap.ops.safe_{case.op}(x), atan2, or clamp to ±(1 - 1e-6)",
        patch=True,
    )
