"""Why no gradient reaches an optimizer, as the graph below a loss shows it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nantrap.incident.wording import counted
from nantrap.locate.nodes import leaves_below

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
