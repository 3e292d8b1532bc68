"""The graph below a loss: its nodes and leaves, and why no gradient reaches an optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from nantrap.incident.wording import counted


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


EXPLAINED_AFTER = 4
"""Steps in a row without any gradient after which the graph is examined."""


def why_no_gradient(loss: Tensor, parameters: Sequence[Tensor]) -> str:
    """The reason in words, with its code; empty where there may be another one.

    Args:
        loss: of the backward pass that begins now.
        parameters: those of the optimizer.
    """
    owned = counted(len(parameters), "parameter")
    if not any(parameter.requires_grad for parameter in parameters):
        return (
            f"no gradient reaches the optimizer: all of its {owned} are frozen, requires_grad is False "
            "(NT876 optimizer_frozen)"
        )
    ours = set(map(id, parameters))
    leaves = leaves_below(loss)
    if leaves and not any(id(leaf) in ours for leaf in leaves) and len(leaves) >= len(parameters):
        return (
            f"no gradient reaches the optimizer: the loss depends on none of its {owned}, but on {len(leaves):,} "
            "others. The model was made, copied or loaded again after the optimizer (NT877 optimizer_of_another_model)"
        )
    return ""
