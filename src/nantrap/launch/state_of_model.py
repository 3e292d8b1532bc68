"""Which objects that a script saves are a state of a guarded model; data and predictions may hold NaN.

An object is a state if it holds a module or an optimizer, names of the model's parameters at any depth and with any
prefix, or, under other names, the very non-finite values that are in the model now: the same memory, or NaN and Inf at
the same places.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nantrap import finite
from nantrap.checkpoints.store.gate import as_tensor
from nantrap.launch.script_loop import ScriptLoop

_MOST_PARTS = 100_000
"""Parts of an object that are looked at, before it is known to be a state."""
_PLAIN = (str, bytes, int, float, complex, type(None))


def is_state(parts: list[Any], loops: list[ScriptLoop]) -> bool:
    """Whether an object with these parts is a state of a guarded model."""
    mappings = [part for part in parts if isinstance(part, Mapping)]
    if any(isinstance(part, (nn.Module, Optimizer)) for part in parts) or any(map(_is_of_optimizer, mappings)):
        return True
    if mappings:
        names = {name for loop in loops for name, _ in loop.session.protected.members.named()}
        keys = (key for each in mappings for key in each if isinstance(key, str))
        if any(tail in names for key in keys for tail in _tails(key)):
            return True
    tensors = [tensor for part in parts if (tensor := as_tensor(part)) is not None]
    bad = [tensor for tensor in tensors if finite.any_nonfinite([tensor])]
    return bool(bad) and _is_of_model(bad, loops)


def _is_of_model(bad: list[Tensor], loops: list[ScriptLoop]) -> bool:
    """Whether non-finite values are those of a model, by their memory or by their places."""
    live = [tensor for loop in loops for tensor in _tensors_of(loop) if finite.any_nonfinite([tensor])]
    masks = [_mask(tensor) for tensor in live]
    alike = 0
    for tensor in bad:
        if any(_share(tensor, each) for each in live):
            return True
        mask = _mask(tensor)
        if any(mask.shape == each.shape and torch.equal(mask, each) for each in masks):
            alike += 1
            if bool(mask.any()) or alike > 1:  # of values none of which is finite, one tensor says nothing
                return True
    return False


def parts_of(value: Any) -> Iterator[Any]:
    """An object and everything in it: containers and attributes, but not what is inside of modules and tensors."""
    waiting: list[Any] = [value]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_PARTS:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        inner: Any = ()
        if isinstance(part, Mapping):
            inner = part.values()
        elif isinstance(part, (list, tuple, set, frozenset)):
            inner = part
        elif not isinstance(part, (nn.Module, Tensor, type, ModuleType)):
            inner = getattr(part, "__dict__", {}).values()
        waiting += [each for each in itertools.islice(inner, _MOST_PARTS) if not isinstance(each, _PLAIN)]


def _is_of_optimizer(mapping: Mapping[Any, Any]) -> bool:
    return "param_groups" in mapping and "state" in mapping


def _tails(name: str) -> Iterator[str]:
    """The name, then without each of its leading parts: a wrapper may have put something before it."""
    while name:
        yield name
        name = name.partition(".")[2]


def _tensors_of(loop: ScriptLoop) -> list[Tensor]:
    """The parameters and buffers of a model, the state of its optimizer, and all parameters as one vector."""
    root = loop.session.protected.root
    parameters = [each.detach() for each in loop.parameters]
    state = [each for values in loop.optimizer.state.values() for each in values.values() if isinstance(each, Tensor)]
    plain = [flat for each in parameters if (flat := finite.readable(each)) is not None]
    alike = len({(each.dtype, each.device) for each in plain}) == 1
    vector = [torch.cat([each.reshape(-1) for each in plain])] if alike else []
    return [*parameters, *root.buffers(), *state, *vector]


def _mask(tensor: Tensor) -> Tensor:
    """Which values are finite."""
    dense = finite.readable(tensor)
    return torch.ones(0, dtype=torch.bool) if dense is None else dense.isfinite().cpu()


def _share(one: Tensor, other: Tensor) -> bool:
    return one.device == other.device and one.data_ptr() == other.data_ptr() != 0
