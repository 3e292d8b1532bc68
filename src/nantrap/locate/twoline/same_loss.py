"""Whether a loss that was computed again is the loss of the failed step: the same graph, and the same value.

A framework may divide or multiply a loss once more after the program has computed it: `accelerator.backward(loss)`
divides by the number of micro-batches. The statements of the program then give the loss before the division, and its
graph is a part of the graph of the loss that failed (`applied_after`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nantrap.finite import same_values
from nantrap.locate.batch import tensors_of
from nantrap.locate.failure import Failure
from nantrap.locate.nodes import ACCUMULATE
from nantrap.locate.replay.root_call import MOST_CALLS, Factor, RootCall
from nantrap.locate.torch_private import raw_tensor

_MOST_NODES = 20_000
_DIVIDES = {"DivBackward0": True, "MulBackward0": False}
_MOST_FACTORS = 3
_SHAPE_ONLY = frozenset({"ViewBackward0", "ReshapeAliasBackward0", "UnsafeViewBackward0"})
"""`reshape` records one or another of them, or none, depending on whether a dispatch mode is active. The live step has
no mode, and the step that is computed again has one."""


def same_value(failed: Failure, now: float) -> bool:
    """Whether a loss has the value of the failed one. NaN is equal to NaN here."""
    then = failed.loss_value
    return now == then or (math.isnan(now) and math.isnan(then))


def same_inputs(calls: Sequence[RootCall], args: Any, kwargs: Any) -> bool:
    """Whether one of these calls was given these values. Where none was recorded, or not all, it may have been."""
    now = [tensor for _, tensor in tensors_of((args, kwargs))]
    recorded = [[tensor for _, tensor in tensors_of((call.args, call.kwargs))] for call in calls]
    return (
        not calls
        or len(calls) > MOST_CALLS
        or any(len(now) == len(then) and all(map(_may_be_same, now, then)) for then in recorded)
    )


def _may_be_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same values, as far as that can be compared."""
    dense = one.layout == other.layout == torch.strided
    return one is other or not dense or same_values(one.detach(), other.detach())


def same_graph(then: Any, now: Any) -> bool:
    """Whether two nodes come from the same operations, from the same parameters, and not from each other."""
    pairs: list[tuple[Any, Any]] = [(then, now)]
    seen: set[Any] = set()
    for a, b in pairs:  # grows while it is walked
        a, b = _past_views(a), _past_views(b)
        if a is None or b is None:
            if a is not b:
                return False
            continue
        if a in seen:
            continue
        seen.add(a)
        if _kind(a) != _kind(b) or len(a.next_functions) != len(b.next_functions):
            return False
        if a.name() == ACCUMULATE:
            if a.variable is not b.variable and not _made_alike(a.variable, b.variable):
                return False
            continue
        if a is b:
            return False
        if len(seen) > _MOST_NODES:
            break
        pairs += [(x, y) for (x, _), (y, _) in zip(a.next_functions, b.next_functions, strict=True)]
    return True


def _made_alike(one: Tensor, other: Tensor) -> bool:
    """Whether two leaves are no parameters and hold the same: each run makes its own, `x.clone().requires_grad_()`."""
    return not isinstance(one, nn.Parameter) and not isinstance(other, nn.Parameter) and _may_be_same(one, other)


def _kind(node: Any) -> str:
    """The name of a node, the same with and without a dispatch mode (`IndexPutImplBackward0`, `IndexPutBackward0`)."""
    return str(node.name()).replace("Impl", "")


def _past_views(node: Any) -> Any:
    """The first node from here on that does more than change a shape."""
    while node is not None and node.name() in _SHAPE_ONLY and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
    return node


# ---- what followed after the program had computed the loss


def factors_of(loss: Tensor) -> tuple[Factor, ...]:
    """By what a loss was divided and multiplied at its end, the last one first. Its graph must not be freed."""
    return tuple(factor for factor, _ in _above(loss.grad_fn))


def ends_of(loss: Tensor) -> set[Any]:
    """The node of a loss, and those before it was divided or multiplied by a number."""
    return {loss.grad_fn, *(below for _, below in _above(loss.grad_fn))}


def applied_after(
    then: Tensor, now: Tensor, known: Sequence[Factor], same: Callable[[Any, Any], bool] = same_graph
) -> Callable[[Tensor], Tensor] | None:
    """What the failed loss went through after the program had computed it: a function of that loss; `None` where the
    loss that was computed is no part of it.

    Args:
        then: the failed loss.
        now: the loss as the program's statements give it again.
        known: the factors that were read while the graph was alive.
        same: whether two nodes have the same graph.
    """
    factors: list[Factor] = []
    if same(then.grad_fn, now.grad_fn):
        return _in_order(factors, then, now)
    for position, (factor, below) in enumerate(_above(then.grad_fn)):
        read = known[position] if position < len(known) else factor
        factors.insert(0, read if factor.number is None else factor)
        if same(below, now.grad_fn):
            return _in_order(factors, then, now)
    return None


def _in_order(factors: list[Factor], then: Tensor, now: Tensor) -> Callable[[Tensor], Tensor] | None:
    """A function that applies these factors to a loss; `None` if one of their numbers is not known."""
    if len(factors) == 1 and factors[0].number is None:
        factors = [_by_values(factors[0].divides, then.detach(), now.detach())]
    if any(factor.number is None for factor in factors):
        return None

    def apply(loss: Tensor) -> Tensor:
        for factor in factors:
            loss = factor.apply(loss)
        return loss

    return apply


def _by_values(divides: bool, then: Tensor, now: Tensor) -> Factor:
    """The factor between two finite values, exactly; mostly a whole number of micro-batches."""
    before, after = float(now), float(then)
    if not (math.isfinite(before) and math.isfinite(after)) or not (before and after):
        return Factor(divides, None)  # any factor would do
    ratio = before / after if divides else after / before
    for number in (float(round(ratio)), ratio):
        factor = Factor(divides, number)
        if number and float(factor.apply(now)) == after:
            return factor
    return Factor(divides, None)


def _above(node: Any) -> Iterator[tuple[Factor, Any]]:
    """Divisions and multiplications by a number at the end of a graph, from the loss on, and what is below each."""
    for _ in range(_MOST_FACTORS):
        name = "" if node is None else node.name()
        below = [each for each, _ in node.next_functions if each is not None] if name in _DIVIDES else []
        if len(below) != 1:
            return
        yield Factor(_DIVIDES[name], _number(node)), below[0]
        node = below[0]


def _number(node: Any) -> float | None:
    try:
        other = raw_tensor(node, "_raw_saved_other")
    except (RuntimeError, AttributeError):  # backward has freed it
        return None
    return float(other) if isinstance(other, Tensor) and other.numel() == 1 else None
