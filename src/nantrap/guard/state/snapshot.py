"""Parameters and optimizer state, copied so that an update can be undone bit for bit.

What is restored keeps its identity: the same tensor objects, with their old contents, so that every reference to them
(of a scheduler, a fused kernel, the user) stays valid. State that the step created is removed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from nantrap import finite
from nantrap.finite import size_in_bytes
from nantrap.guard.torch_private import copy_parts, restore_parts
from nantrap.locate import layers_of, state_tensors


@dataclass(frozen=True, slots=True)
class _Layer:
    """State and hyper-parameters of one optimizer. Tensors of the state are kept by identity, their contents apart."""

    optimizer: Optimizer
    states: dict[Any, dict[str, Any]]
    groups: list[dict[str, Any]]

    @classmethod
    def of(cls, optimizer: Optimizer, tensors: list[Tensor]) -> _Layer:
        """An optimizer as it is now; the tensors of its state are added to `tensors`."""
        states: dict[Any, dict[str, Any]] = {}
        for key, state in optimizer.state.items():
            if not isinstance(state, dict):
                continue
            kept: dict[str, Any] = {}
            for name, value in state.items():
                if isinstance(value, Tensor):
                    tensors.append(value)
                    kept[name] = value
                else:
                    kept[name] = copied(value)
            states[key] = kept
        groups = [
            {name: copied(value) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        return cls(optimizer, states, groups)

    def restore(self) -> None:
        """Put back all but the contents of the state's tensors."""
        live = self.optimizer.state
        for key in [key for key in live if key not in self.states]:
            del live[key]
        for key, kept in self.states.items():
            state = live[key]
            state.clear()
            state.update({name: _restored(value) for name, value in kept.items()})
        for group, kept in zip(self.optimizer.param_groups, self.groups, strict=True):
            for name in [name for name in group if name != "params" and name not in kept]:
                del group[name]
            for name, value in kept.items():
                live_value = group.get(name)
                if isinstance(value, Tensor) and isinstance(live_value, Tensor):
                    live_value.copy_(value)
                else:
                    group[name] = _restored(value)


class UpdateSnapshot:
    """One copy of parameters, optimizer state and hyper-parameters; `take` again reuses its memory."""

    def __init__(self, parameters: list[torch.nn.Parameter], optimizer: Optimizer) -> None:
        self._parameters = parameters
        self._optimizer = optimizer
        self._originals: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._layers: list[_Layer] = []

    def take(self) -> None:
        """Remember everything as it is now."""
        tensors: list[Tensor] = list(self._parameters)
        self._layers = [_Layer.of(layer, tensors) for layer in layers_of(self._optimizer)]
        if not _same(tensors, self._originals):
            self._originals, self._copies = [], []  # memory may end in the middle: half a copy is none
            self._copies = [copied(tensor) for tensor in tensors]
            self._originals = tensors
            return
        with torch.no_grad():
            copy_parts(self._copies, tensors)

    def restore(self) -> None:
        """Put everything back as it was at `take`, without counting it as a write. May be called again."""
        if self._originals:
            restore_parts(self._originals, self._copies)
        for layer in self._layers:
            layer.restore()

    def fits(self) -> bool:
        """Whether the optimizer still has the parameters and the groups it had at `take`."""
        count = len(self._parameters)
        return _same(self._parameters, self._originals[:count]) and all(
            len(layer.optimizer.param_groups) == len(layer.groups) for layer in self._layers
        )

    def was_finite(self, tensor: Tensor) -> bool:
        """Whether `tensor` (by identity) was finite at `take`; a tensor that was made since counts as finite."""
        for original, copied in zip(self._originals, self._copies, strict=True):
            if original is tensor:
                return not finite.any_nonfinite([copied])
        return True

    def value_of(self, tensor: Tensor) -> Tensor | None:
        """The copy of `tensor` (by identity) at `take`; `None` if it is not among them."""
        found = zip(self._originals, self._copies, strict=True)
        return next((copied for original, copied in found if original is tensor), None)

    @property
    def copies(self) -> list[Tensor]:
        """The copies of parameters and optimizer state."""
        return self._copies

    @property
    def nbytes(self) -> int:
        """Memory the copies take."""
        return sum(map(size_in_bytes, self._copies))


def state_bytes(parameters: list[torch.nn.Parameter], optimizer: Optimizer) -> int:
    """Memory that one snapshot would take."""
    return sum(map(size_in_bytes, [*parameters, *state_tensors(optimizer)]))


def _same(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(tensors) == len(others) and all(a is b for a, b in zip(tensors, others, strict=True))


def copied(value: Any) -> Any:
    """A copy that later in-place changes cannot reach; plain numbers and strings are their own copy."""
    if isinstance(value, Tensor):
        own = finite.copy_of(value)
        return value if own is None else own
    if isinstance(value, (list, tuple)):
        return type(value)(copied(item) for item in value)
    if isinstance(value, (int, float, str, bool, type(None))):
        return value
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return copy.copy(value)


def _restored(value: Any) -> Any:
    # lists are copied again so that restoring twice gives the same thing twice; tensors in `state` are the originals
    return copied(value) if isinstance(value, (list, tuple, dict)) else value
