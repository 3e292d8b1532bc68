"""Optimizers that keep another optimizer: the state of both belongs to the step.

`ZeroRedundancyOptimizer` holds no state itself: the optimizer inside it has that of the parameters which this rank
updates. Lookahead, SAM and the like keep the optimizer that they are built around.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


def layers_of(optimizer: Optimizer) -> list[Optimizer]:
    """An optimizer, then those that it keeps in attributes and that update parameters of it. Each state once."""
    layers = [optimizer]
    for layer in layers:  # grows while it is read
        for value in vars(layer).values():
            for inner in value if isinstance(value, (list, tuple)) else (value,):
                if not isinstance(inner, Optimizer) or any(inner.state is known.state for known in layers):
                    continue
                if parameters_of(inner) & parameters_of(layer):
                    layers.append(inner)
    return layers


def parameters_of(optimizer: Optimizer) -> set[int]:
    """The parameters that an optimizer owns, by id."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def updated_elsewhere(optimizer: Optimizer) -> set[int]:
    """The parameters of an optimizer that another process updates and sends, by id: with ZeRO each rank has its own."""
    _, *inner = layers_of(optimizer)
    return parameters_of(optimizer).difference(*map(parameters_of, inner)) if inner else set()


def states_of(optimizer: Optimizer) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Every parameter that an optimizer remembers something of, with what it remembers."""
    for layer in layers_of(optimizer):
        yield from ((parameter, state) for parameter, state in layer.state.items() if isinstance(state, dict))


def state_tensors(optimizer: Optimizer) -> list[Tensor]:
    """The tensors of an optimizer's state."""
    return [value for _, state in states_of(optimizer) for value in state.values() if isinstance(value, Tensor)]
