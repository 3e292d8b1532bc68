"""NT2xx: zero times infinity, and infinity minus infinity."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nantrap.causes.claim import Claim, rule
from nantrap.causes.facts import in_words, share

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case


@rule("zero_times_inf")
def zero_times_inf(case: Case) -> Claim | None:
    """Zero times infinity gave NaN."""
    if _reached_the_loss_as_it_was(case):
        return _constant_in_loss(case)
    if case.made != "nan" or case.phase != "forward" or not case.inputs or case.output is None or case.capture is None:
        return None
    found = _terms_of_zero_and_inf(case)
    if found is None:
        return None
    text, alone = found
    if _no_operation_made_one(case) and case.bad_model_inputs():
        return None  # it would come to a NaN somewhere: the input is the reason
    return Claim(
        "measured" if alone else "hint",
        "zero times infinity gave NaN: a product with 0 does not remove an Inf",
        (text, *_where_inf_came_from(case)),
        help="select instead of multiplying: torch.where(mask, x, 0) before the product, or leave out a term whose "
        "weight "
        "is 0; nantrap.ops.xlogx(p) for p·log p",
    )


@rule("zero_times_inf", ops=("sub", "rsub", "add"), made="nan")
def inf_minus_inf(case: Case) -> Claim | None:
    """Infinity minus infinity gave NaN, in a forward pass or inside a derivative."""
    if case.output is None or len(case.inputs) != 2:
        return None
    bad = case.output.isnan()
    a, b = (each.expand_as(bad)[bad] for each in case.inputs)
    if not bool((a.isinf() & (b == (-a if case.op == "add" else a))).all()):
        return None
    if case.phase == "forward" and _no_operation_made_one(case) and case.bad_model_inputs():
        return None
    own = case.phase == "backward" and (case.node.removesuffix("Backward0").lower() or "an operation")
    of = f"the derivative of {own}" if own else "the difference"
    sign = "-Inf" if bool((case.inputs[0] == -math.inf).any()) else "Inf"
    return Claim(
        "measured",
        f"{sign} minus {sign} gave NaN in {of}" if own else f"{sign} minus {sign} gave NaN",
        (
            f"both operands of {of} are {sign} at {share(case.inputs[0].isinf() & case.inputs[1].isinf())}",
            *(() if own else _where_inf_came_from(case)),
        ),
        help="mark what is left out with a large finite number instead of Inf (-1e9, or -1e4 in float16), or leave "
        "those places out of both operands before the operation: a torch.where after it repairs no gradient",
    )


def _reached_the_loss_as_it_was(case: Case) -> bool:
    """Whether an Inf of a mask reached the loss, and no operation made a bad value."""
    return (
        case.phase == "forward"
        and case.capture is None
        and case.external is None
        and "the loss" in case.location.sinks
        and case.op not in ("logsumexp", "amax", "max")  # no weights: a row that is masked everywhere
        and case.bad_number is None
        and _only_masks_came_in(case)
        and _an_inf_came_in(case)
    )


def _terms_of_zero_and_inf(case: Case) -> tuple[str, bool] | None:
    """Where the guilty product multiplies 0 by Inf, in words, and whether nothing else makes a NaN there; `None` if it
    does not at each bad place."""
    assert case.output is not None
    assert case.capture is not None
    bad = case.output.isnan()
    if case.op in ("mul", "addcmul") and len(case.inputs) > 1:
        a, b = case.inputs[-2].expand_as(bad)[bad], case.inputs[-1].expand_as(bad)[bad]
        if not bool((((a == 0) & b.isinf()) | ((b == 0) & a.isinf())).all()):
            return None
        return f"at all {int(bad.sum()):,} bad places one factor is 0 and the other Inf", True
    if case.op == "mul" and 0.0 in case.capture.op.scalars and bool(case.inputs[0].isinf().any()):
        text = f"a plain number that is exactly 0 was multiplied by Inf at {share(case.inputs[0].isinf())}"
        return text, bool((case.inputs[0].isinf() == bad).all())
    if case.op in ("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "matmul") and len(case.inputs) > 1:
        if not _meet_in_each(case.inputs[-2], case.inputs[-1], bad):
            return None
        alone = not _other_terms_are_nan(case.inputs[-2], case.inputs[-1], bad)
        text = "one matrix holds Inf where the other holds 0"
        return text + ("; without those terms no entry is NaN" if alone else ""), alone
    return None


def _meet_in_each(a: Tensor, b: Tensor, bad: Tensor) -> bool:
    """Whether a 0 of one matrix meets an Inf of the other in each bad place of their product."""
    found = _meet(a == 0, b.isinf()) | _meet(a.isinf(), b == 0)
    return found.shape == bad.shape and bool(found[bad].all())


def _other_terms_are_nan(a: Tensor, b: Tensor, bad: Tensor) -> bool:
    """Whether a bad place of the product would be NaN without its terms 0 · Inf too: it adds Inf and -Inf."""
    return bool((_adds_inf(a, b) & _adds_inf(a, -b))[bad].any())


def _adds_inf(a: Tensor, b: Tensor) -> Tensor:
    """The places of the product of two matrices to which a term adds +Inf."""
    return (
        _meet(a.isposinf(), b > 0)
        | _meet(a > 0, b.isposinf())
        | _meet(a.isneginf(), b < 0)
        | _meet(a < 0, b.isneginf())
    )


def _meet(left: Tensor, right: Tensor) -> Tensor:
    """The places of a product of two matrices to which a marked value of both contributes in one term."""
    import torch

    return torch.matmul(left.double(), right.double()) > 0


def _where_inf_came_from(case: Case) -> tuple[str, ...]:
    """Said only where no operation before this one made a non-finite value."""
    if not _no_operation_made_one(case):
        return ()
    mask = " (a mask)" if _only_masks_came_in(case) else ""
    return (f"no operation before it made an Inf: it came in with {_from_outside(case)}{mask}",)


def _no_operation_made_one(case: Case) -> bool:
    """Whether the whole step was traced, and no operation before the guilty one made a non-finite value."""
    trace, capture = case.trace, case.capture
    if trace is None or capture is None or trace.captures.get(capture.op.index) is not capture:
        return False
    return all(op.made is None for op in trace.ops[: capture.op.index])


def _from_outside(case: Case) -> str:
    """Where an Inf that no operation made can have come from."""
    from nantrap.finite import any_infinite
    from nantrap.locate import tensors_of

    of_batch = [in_words(path) for path, t in tensors_of(case.failure.batch) if any_infinite([t])]
    return f"{of_batch[0]} or a constant of the program" if of_batch else "a constant of the program"


def _only_masks_came_in(case: Case) -> bool:
    """Whether all bad constants of the step are masks: 0 or any number, and -Inf at some places."""
    known = [] if case.trace is None else [e for e in case.trace.externals.values() if e.kind == "constant"]
    return all(external.mask for external in known)


def _an_inf_came_in(case: Case) -> bool:
    """Whether an Inf was seen in the step: NaN that the program writes is no mask."""
    from nantrap.finite import any_infinite

    trace = case.trace
    if trace is None:
        return False
    return any(op.inf for op in trace.ops) or any_infinite([e.tensor for e in trace.externals.values()])


def _constant_in_loss(case: Case) -> Claim:
    """No operation made the Inf: it was written on purpose, and a reduction took it into the loss."""
    return Claim(
        "hint",
        f"an Inf that was put there on purpose (a mask) reached the loss through {case.location.op}",
        (
            f"every Inf in the step comes from {_from_outside(case)}; no operation made one",
            "label smoothing and soft targets give masked classes a weight, and any weight times Inf is Inf or NaN",
        ),
        help="leave masked classes out of the sum (torch.where(mask, 0, term)), or mask with a large finite value",
    )
