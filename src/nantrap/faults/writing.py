"""Putting a bad value into a tensor: one element of it, or one bit of one element."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from nantrap.faults.plan import VALUES, Fault

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_EXPONENTS = {torch.float32: (23, 31), torch.float64: (52, 63), torch.float16: (10, 15), torch.bfloat16: (7, 15)}
"""The bits of the exponent, first and behind the last."""


def can_hold(tensor: Tensor) -> bool:
    """Whether a bad value can be written into a tensor."""
    return tensor.is_floating_point() and own_part(tensor).numel() > 0 and tensor.layout == torch.strided


@torch.no_grad()
def own_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor that is spread over ranks: writing the whole would call the other ranks."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def spoil(tensor: Tensor, fault: Fault, chance: random.Random) -> str:
    """Write the fault's value into one element, in place. Returns the place in words."""
    tensor = own_part(tensor)
    index = _index(tensor, chance.randrange(tensor.numel()))
    with torch.no_grad():
        tensor[index] = VALUES[fault.value]
    return str(list(index))


def spoiled(tensor: Tensor, fault: Fault, chance: random.Random) -> Tensor:
    """A copy with the fault's value in one element; gradients flow through the rest."""
    copy = tensor.clone()
    part = own_part(copy)
    part[_index(part, chance.randrange(part.numel()))] = VALUES[fault.value]
    return copy


def flip_bit(tensor: Tensor, fault: Fault, chance: random.Random) -> str:
    """Flip one bit of one element, in place, as a faulty memory would."""
    tensor = own_part(tensor)
    index = _index(tensor, chance.randrange(tensor.numel()))
    first, last = _EXPONENTS[tensor.dtype]
    bit = fault.bit if fault.bit is not None else chance.randrange(first, last)
    with torch.no_grad():
        one = tensor[index].reshape(1).clone()
        bits = one.view(_INTEGERS[tensor.element_size()])
        width = 8 * tensor.element_size()
        mask = 1 << bit if bit < width - 1 else -(1 << bit)
        bits ^= mask
        tensor[index] = one[0]
    return f"{list(index)} bit {bit}"


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of arguments or outputs: tuples, lists, dicts, dataclass-like outputs."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)


def with_tensors(value: Any, change: Any) -> Any:
    """Rebuilds a structure with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        changed = {key: with_tensors(each, change) for key, each in value.items()}
        if type(value) is dict:
            return changed
        other = copy.copy(value)  # an output class of a framework keeps its attributes
        for key, each in changed.items():
            other[key] = each
        return other
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(with_tensors(each, change) for each in value))
    if isinstance(value, (list, tuple)):
        return type(value)(with_tensors(each, change) for each in value)
    return value


def _index(tensor: Tensor, position: int) -> tuple[int, ...]:
    index = []
    for size in reversed(tensor.shape):
        position, place = divmod(position, size)
        index.append(place)
    return tuple(reversed(index))
