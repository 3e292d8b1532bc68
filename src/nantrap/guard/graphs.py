"""The graph below a loss: its nodes, and the leaves in whose gradients a backward pass would end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor


def leaves_below(loss: Tensor) -> list[Tensor]:
    """The leaves in whose gradients a backward pass from here would end."""
    return leaves_of(nodes_below(loss))


def leaves_of(nodes: Iterable[Any]) -> list[Tensor]:
    """The leaves among the nodes of a graph."""
    found = (getattr(node, "variable", None) for node in nodes)
    return list({id(leaf): leaf for leaf in found if leaf is not None}.values())


def nodes_below(loss: Tensor) -> dict[Any, None]:
    """The nodes of the graph that a backward pass from here would visit, in the order of the graph."""
    waiting = [loss.grad_fn] if loss.grad_fn is not None else []
    seen = dict.fromkeys(waiting)
    while waiting:
        for below, _ in waiting.pop().next_functions:
            if below is not None and below not in seen:
                seen[below] = None
                waiting.append(below)
    return seen
