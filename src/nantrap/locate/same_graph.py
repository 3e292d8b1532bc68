"""Whether a loss that was computed again is the loss of the failed step: the same graph, and the same value."""

from __future__ import annotations

import math
from typing import Any

from nantrap.locate.nodes import ACCUMULATE
from nantrap.locate.step import FailedStep

_MOST_NODES = 20_000
_SHAPE_ONLY = frozenset({"ViewBackward0", "ReshapeAliasBackward0", "UnsafeViewBackward0"})
"""`reshape` records one or another of them, or none, depending on whether a dispatch mode is active. The live step has
no mode, and the step that is computed again has one."""


def same_value(failed: FailedStep, now: float) -> bool:
    """Whether a loss has the value of the failed one. NaN is equal to NaN here."""
    then = failed.loss_value
    return now == then or (math.isnan(now) and math.isnan(then))


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
        if a.name() != b.name() or len(a.next_functions) != len(b.next_functions):
            return False
        if a.name() == ACCUMULATE:
            if a.variable is not b.variable:
                return False
            continue
        if a is b:
            return False
        if len(seen) > _MOST_NODES:
            break
        pairs += [(x, y) for (x, _), (y, _) in zip(a.next_functions, b.next_functions, strict=True)]
    return True


def _past_views(node: Any) -> Any:
    """The first node from here on that does more than change a shape."""
    while node is not None and node.name() in _SHAPE_ONLY and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
    return node
