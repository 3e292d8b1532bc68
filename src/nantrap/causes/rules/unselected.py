"""NT3xx: a branch that was not selected, and its gradient of exactly 0."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nantrap.causes.claim import Claim, Remedy, rule
from nantrap.causes.facts import describe, in_words, share
from nantrap.causes.steep import family_of, node_of, written_as

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case
    from nantrap.incident import Trial
    from nantrap.locate.trace import Capture, External, Op

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
    "Hardtanh",
    "Topk",
    "Sort",
    "Amin",
    "Amax",
    "Min",
    "Max",
    "Kthvalue",
    "Median",
    "Take",
)
_MASKS = (
    "gt", "ge", "lt", "le", "eq", "ne", "logical_not", "logical_and", "logical_or", "bitwise_not", "isfinite",
    "eye", "tril",
    "triu", "ones", "zeros", "ones_like", "zeros_like", "one_hot", "full", "bernoulli",
)  # fmt: skip
_FINITE_AT_ZERO = ("Xlogy", "SpecialEntr")
"""Logarithms times their argument: 0 at 0, where only the slope is infinite."""
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
    """A branch that was not selected put NaN into the gradient."""
    if case.external is not None:
        return _data_left_out(case, case.external) if is_left_out(case) else None
    if case.trace is None or case.decomposes:
        return None
    if case.location.replay is not None and case.location.replay.dropped is not None:
        return _dropped_branch(case, case.location.replay.dropped)
    zeros = _zero_gradients(case) if case.phase == "backward" else ()
    found = next(((i, node) for i in zeros if (node := _selector(case, i)) is not None), None)
    made = made_in_forward(case)
    if (found is None or not found[1][1]) and made is not None and is_left_out(case):
        return _result_left_out(case, made)
    if found is None:
        return _pole_unseen(case) if case.phase == "backward" else None
    incoming, (selector, seen) = found
    _, (_, call, _) = family_of(case.node)
    trial, remedies = _safe_form(case)
    selected = f", and also 0 where it leaves {selector}: these places were not selected" if seen else ""
    return Claim(
        "measured" if seen else "hint",
        f"the branch of {call} that was not selected put NaN into the gradient",
        (
            f"the gradient that reaches {case.node} is exactly 0 at all {incoming.count:,} bad places{selected}",
            f"the local {case.derivative} of {call} is infinite there, and 0 · Inf = NaN",
        ),
        trial=trial,
        shows="with an argument that is safe on both branches the step is finite",
        remedies=remedies,
        help=f"select before the operation, not after it: {_selected(call)}, then torch.where on the result",
    )


def is_left_out(case: Case) -> bool:
    """Whether the loss does not depend on the non-finite values that were there before the backward pass: those of the
    batch, or those that operations of the forward pass made."""
    if case.external is not None:
        known = (
            [] if case.trace is None else [i for i, e in case.trace.externals.items() if e.name == case.external.name]
        )
        missing = case.external.kind == "batch" and _marks_missing(case, case.external)
        return missing and _reaches_the_end(case) and case.lab.is_left_out("batch", known.__contains__)
    if not math.isfinite(case.failure.loss_value) or made_in_forward(case) is None:
        return False
    return case.lab.is_left_out("forward", lambda origin: origin >= 0)


def _reaches_the_end(case: Case) -> bool:
    """Whether the loss or a gradient is not finite. Where only a buffer is, the buffer took what is missing."""
    from nantrap.finite import any_nonfinite

    return not math.isfinite(case.failure.loss_value) or any_nonfinite(case.failure.gradients.values())


def _marks_missing(case: Case, external: External) -> bool:
    """Whether a tensor of the batch may mark values as missing: by NaN, or by Inf where the loss is finite (a score of
    -Inf for padding), and it is not what a layer of the model is given."""
    from nantrap.finite import readable

    trace, first, values = case.trace, external.first_reader, readable(external.tensor)
    if trace is None or first is None or values is None:
        return False
    if bool(values.isinf().any()) and not math.isfinite(case.failure.loss_value):
        return False
    return not trace.reads_parameter(trace.ops[first])


def made_in_forward(case: Case) -> Op | None:
    """The operation of the forward pass that made the non-finite values at which the failure began; `None` if that was
    the backward pass, from finite ones."""
    trace, replay = case.trace, case.location.replay
    if trace is None or replay is None or replay.op is None:
        return None
    start = replay.op if replay.op.phase == "forward" else trace.op_of_node(replay.op.sequence)
    behind = trace.behind([] if start is None else [start.index], lambda op: op.nan or op.inf)
    return min((op for op in behind if op.made and op.phase == "forward"), key=lambda op: op.index, default=None)


def _data_left_out(case: Case, external: External) -> Claim:
    """The batch marks values as missing, and the mask comes after the arithmetic."""
    name, ends = in_words(external.name), math.isfinite(case.failure.loss_value)
    value = "NaN" if bool(external.tensor.isnan().any()) else "Inf"
    into = "the gradient" if ends else "the loss"
    brings = (
        f"the loss is finite; a gradient of exactly 0 is multiplied by them in the backward pass, and 0 · {value} = NaN"
        if ends
        else "a mask that is multiplied afterwards does not remove them: 0 · NaN = NaN"
    )
    return Claim(
        "measured",
        f"{value} values of {name} that the loss leaves out put NaN into {into}: the mask comes after the arithmetic",
        (f"{name} {describe(external.tensor)} before the forward pass", _SAME_LOSS, brings),
        help=f"make the mask first, and fill the places before anything is computed: "
        f"ok = {name}.isfinite(), then torch.where(ok, {name}, 0.0) in the place of {name}",
    )


_SAME_LOSS = "the loss is the same with 0 and with 1 in their place: the program leaves them out"


def _result_left_out(case: Case, made: Op) -> Claim:
    """The forward pass made non-finite values and left them out again; its derivative brought them back."""
    node = node_of(made)
    _, (_, call, _) = family_of(node)
    trial, remedies = _safe_form(case, node, made)
    line = "" if made.place is None else f" in line {made.place.line}"
    return Claim(
        "measured",
        f"the branch of {call} that was not selected put NaN into the gradient",
        (
            f"{made.name}{line} gave {made.bad:,} non-finite of {made.values:,} values, and the loss is finite",
            _SAME_LOSS,
            "a gradient of exactly 0 is multiplied by them in the backward pass, and 0 · Inf = NaN",
        ),
        trial=trial,
        shows="with an argument that is safe on both branches the step is finite",
        remedies=remedies,
        help=f"select before the operation, not after it: {_selected(call)}, then torch.where on the result",
    )


def _pole_unseen(case: Case) -> Claim | None:
    """Only the graph is known: a division by 0 or a log of 0 whose value was Inf as well, after a finite loss."""
    call = value_pole(case)
    if not call or case.failure.repeatable:
        return None
    return Claim(
        "tried",
        f"{call} gave Inf or NaN, and the loss is finite: it was left out afterwards, and its derivative was not",
        (f"{case.node}: what it divides by is exactly 0, where {call} is not finite either",),
        help=f"select before the operation, not after it: {_selected(call)}, then torch.where on the result",
    )


def value_pole(case: Case) -> str:
    """`a / b`: the call whose slope is infinite at 0, if its value is not finite there either; else empty."""
    name, (family, call, _) = family_of(case.node)
    at_zero = case.capture is not None and case.op in ("div", "mul", "rsqrt") and bool(case.inputs)
    if not name or not at_zero or not (family in ("div", "log") or name == "Rsqrt") or name in _FINITE_AT_ZERO:
        return ""
    divisor = case.inputs[-1] if case.op == "div" else case.inputs[0]
    return call if bool((divisor == 0).any()) or bool(divisor.isinf().any()) else ""


def _dropped_branch(case: Case, index: int) -> Claim | None:
    """The forward result was NaN at places that never reached the loss; its derivative brought it back."""
    assert case.trace is not None
    capture = case.trace.captures.get(index)
    if capture is None:
        return None
    _, (_, call, _) = family_of(case.node)
    trial, remedies = _safe_form(case)
    return Claim(
        "measured",
        f"the branch of {call} that was not selected put NaN into the gradient",
        (
            f"{capture.op.name} gave NaN at {share(capture.outputs[0].isnan())}, and the loss is finite: dropped",
            f"{case.node} multiplies the gradient of exactly 0 that those places get by NaN, and 0 · NaN = NaN",
        ),
        trial=trial,
        shows="with an argument that is safe on both branches the step is finite",
        remedies=remedies,
        help=f"select before the operation, not after it: {_selected(call)}, then torch.where on the result",
    )


def _safe_form(case: Case, node: str = "", made: Op | None = None) -> tuple[Trial | None, tuple[Remedy, ...]]:
    """The call in a form that is finite on both branches, tried; none for a call that has no such form.

    Args:
        case: the failure.
        node: of the call, if it is not the guilty one.
        made: the operation of that call.
    """
    name, (family, _, safe) = family_of(node or case.node)
    if not name or family == "norm":
        return None, (Remedy(safe),) if name else ()
    if made is None or made.place is None or not case.failure.repeatable:
        trial = case.try_replacement(family)
    else:
        source = made.place.source()
        trial = case.lab.replaced(source, family)
        if trial.finite is False:  # 0 there may be no better: sqrt, log and 1 / x come next
            family, trial = "selected", case.lab.replaced(source, "selected")
    return trial, (case.remedy(family, trial, written_as(name)),)


def _selected(call: str) -> str:
    """The call with its argument made harmless where the result is not selected."""
    chosen = "torch.where(ok, x, 1.0)"
    forms = {
        "a / b": "a / torch.where(ok, b, 1.0)",
        "a * b": "a * torch.where(ok, b, 1.0)",
        "1 / x": f"1 / {chosen}",
        "x ** a with a < 1": f"{chosen} ** a",
    }
    return forms.get(call, f"{call}({chosen})")


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
    afterwards (log of 1, a weight of 0, the x of x · log y) belong to places that were selected. The second value:
    whether that could be checked.
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
        if leaves_zero is not False and not _enters_zero(case, op, incoming):
            return str(op.node), bool(leaves_zero)
        if selects and leaves_zero is False:
            rejected.add(op.sequence)
        if op.sequence != incoming.op.sequence or _hands_on_zero(case, op, incoming):
            queue += op.sources
    return None


def _hands_on_zero(case: Case, op: Op, incoming: Incoming) -> bool:
    """Whether the zeros of an operation inside the guilty node are those of the gradient: a product with another factor
    that is 0 makes them itself."""
    kept, bad, trace = case.operands_of(op.index), incoming.bad, case.trace
    if kept is None or bad is None or trace is None or op.name != "aten.mul" or not kept.outputs:
        return True
    from_gradient = [
        given
        for source, given in zip(op.sources, kept.inputs(), strict=False)
        if source >= 0 and trace.ops[source].phase == "backward"
    ]
    try:
        return not from_gradient or any(bool((each.expand_as(bad)[bad] == 0).all()) for each in from_gradient)
    except RuntimeError:
        return True


def _leaves_zero(case: Case, op: Op, incoming: Incoming) -> bool | None:
    """Whether the gradient is exactly 0 at all bad places when it leaves the selecting operation; `None` if unknown."""
    kept = case.operands_of(op.index)
    if kept is None or not kept.outputs or incoming.bad is None:
        return None  # it cannot be checked again: only the kind of the node is known
    leaving = kept.outputs[0]
    if leaving.numel() == incoming.bad.numel():
        leaves_zero = bool((leaving.reshape(incoming.bad.shape)[incoming.bad] == 0).all())
        return leaves_zero if not leaves_zero or _makes_zero(case, kept, incoming.bad) else None
    if leaving.numel() > incoming.bad.numel() or not leaving.numel():
        return True
    try:
        return bool((leaving.expand_as(incoming.bad)[incoming.bad] == 0).all())
    except RuntimeError:
        return True


def _makes_zero(case: Case, kept: Capture, bad: Tensor) -> bool:
    """Whether the selecting operation gives 0 at all bad places for a gradient of 1 too: none of them is selected."""
    import torch

    from nantrap.locate.trace.storage import map_leaves

    assert case.trace is not None
    ops, inputs = case.trace.ops, kept.inputs()
    gradients = {
        id(given)
        for source, given in zip(kept.op.sources, inputs, strict=False)
        if source >= 0 and ops[source].phase == "backward" and ops[source].name.removeprefix("aten.") not in _FILLS
        if given.is_floating_point()  # the mask of a clamp is made in the backward pass too
    }

    def changed(leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return torch.ones_like(leaf) if id(leaf) in gradients else leaf.clone()

    try:
        with torch.no_grad():
            args, kwargs = map_leaves((kept.args, kept.kwargs), changed)
            given = kept.func(*args, **kwargs)
            return bool((given.reshape(bad.shape)[bad] == 0).all())
    except Exception:  # an operation that cannot be called again by itself
        return True


def _enters_zero(case: Case, op: Op, incoming: Incoming) -> bool:
    """Whether the gradient was exactly 0 at all bad places before the selecting operation: then another one made it."""
    kept, trace = case.operands_of(op.index), case.trace
    if kept is None or trace is None or incoming.bad is None:
        return False
    for source, given in zip(op.sources, kept.inputs(), strict=False):
        maker = trace.ops[source] if source >= 0 else None
        if maker is None or maker.phase != "backward" or maker.name.removeprefix("aten.") in _FILLS:
            continue  # no gradient: a mask, or the zeros that an index puts a gradient into
        if given.shape == incoming.bad.shape and given.is_floating_point() and bool((given[incoming.bad] == 0).all()):
            return True
    return False


def _is_mask_product(case: Case, op: Op) -> bool:
    """Whether a factor of the node's forward product was a mask: a comparison, a triangle, a constant of
    the program."""
    trace = case.trace
    assert trace is not None
    made_by = trace.op_of_node(op.sequence)
    if made_by is None:  # the two-line form: the node's own saved factors, if they were kept
        from nantrap.locate.replay.root_call import LossPart

        part = case.failure.evidence
        factors = part.saved_by(op.sequence) if isinstance(part, LossPart) else ()
        return any(bool(((factor == 0) | (factor == 1)).all()) for factor in factors)
    for argument in range(len(made_by.sources)):
        if made_by.sources[argument] < 0 and argument > 0:
            return True  # came from outside the step: a constant, or a mask of the batch
        names = [o.name.removeprefix("aten.") for o in case.source_ops(made_by, argument)[:3]]
        if any(name in _MASKS for name in names):
            return True
    return False
