"""A loss that was divided or multiplied once more after the program had computed it.

A framework does that: `accelerator.backward(loss)` divides by the number of micro-batches. The statements of the
program then give the loss before the division, and its graph is a part of the graph of the loss that failed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from nantrap.locate.torch_private import raw_tensor

_DIVIDES = {"DivBackward0": True, "MulBackward0": False}
_DEEPEST = 3


class Factor(NamedTuple):
    """One number that a loss was divided or multiplied by; `None` where it is not known any more."""

    divides: bool
    number: float | None

    def apply(self, loss: Tensor) -> Tensor:
        """The loss after it."""
        assert self.number is not None
        return loss / self.number if self.divides else loss * self.number


def factors_of(loss: Tensor) -> tuple[Factor, ...]:
    """By what a loss was divided and multiplied at its end, the last one first. Its graph must not be freed."""
    return tuple(factor for factor, _ in _above(loss.grad_fn))


def ends_of(loss: Tensor) -> set[Any]:
    """The node of a loss, and those before it was divided or multiplied by a number."""
    return {loss.grad_fn, *(below for _, below in _above(loss.grad_fn))}


def applied_after(then: Tensor, now: Tensor, known: Sequence[Factor], same: Callable[[Any, Any], bool]) -> Any:
    """What the failed loss went through after the program had computed it: a function of that loss, or `None`.

    Args:
        then: the failed loss.
        now: the loss as the program's statements give it again.
        known: the factors that were read while the graph was alive.
        same: whether two nodes have the same graph.
    """
    factors: list[Factor] = []
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
    for _ in range(_DEEPEST):
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
