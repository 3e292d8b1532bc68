"""What a trace reads of a tensor: the memory that holds it, its extremes, and whether it is a mask."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from nantrap.finite import readable
from nantrap.finite.torch_private import stored_values
from nantrap.locate.torch_private import is_zero_tensor, storage_number

T = TypeVar("T")


class Where(NamedTuple):
    """Where a tensor lived: views of the same part of the same memory are one."""

    memory: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class Memory:
    """Identifies the memory of tensors by a number that no other memory gets while this object exists.

    The address of a storage alone is no identity: it is used again as soon as the storage is freed. A weak reference to
    a storage lets its data go and keeps the address taken, so it is held for every storage that was seen. A tensor
    without a storage (a compressed sparse one) is held itself.
    """

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}

    def key(self, tensor: Tensor) -> int:
        """The identity of the memory that holds `tensor`; views of one memory share it, and so does a DTensor."""
        if hasattr(tensor, "to_local"):
            tensor = tensor.to_local()
        if tensor.layout == torch.sparse_coo:
            tensor = stored_values(tensor)
        if tensor.layout == torch.strided:
            try:
                storage = tensor.untyped_storage()
            except (RuntimeError, NotImplementedError):
                pass
            else:
                key = storage_number(tensor)
                if key not in self._held:
                    self._held[key] = StorageWeakRef(storage)
                return key
        key = -id(tensor)
        self._held[key] = tensor
        return key

    def where(self, tensor: Tensor) -> Where:
        """Which part of which memory a tensor is."""
        if tensor.is_nested:  # it has no shape
            return Where(self.key(tensor), 0, (), (), tensor.dtype)
        strided = tensor.layout == torch.strided
        offset = int(tensor.storage_offset()) if strided else 0
        stride = tensor.stride() if strided else ()
        return Where(self.key(tensor), offset, tuple(tensor.shape), stride, tensor.dtype)


def has_memory(tensor: Tensor) -> bool:
    """Whether there are values to read: not those of a meta tensor, nor zeros for which no memory exists."""
    return not (tensor.is_meta or is_zero_tensor(tensor))


def share_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two living tensors are views of the same memory."""
    if a is b:
        return True
    try:
        return storage_number(a) == storage_number(b)
    except (RuntimeError, NotImplementedError):
        return False


def covers_storage(tensor: Tensor) -> bool:
    """Whether writing this tensor overwrites all of its memory."""
    if tensor.layout != torch.strided:
        return True
    try:
        return tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):
        return True


def extremes(tensor: Tensor) -> tuple[bool, bool, float | None]:
    """Whether the tensor holds NaN, holds Inf, and the largest magnitude of a finite tensor."""
    dense = readable(tensor) if has_memory(tensor) else None
    if dense is None:
        return False, False, None
    low, high = torch.aminmax(dense)
    lowest, highest = float(low), float(high)
    if math.isfinite(lowest) and math.isfinite(highest):
        return False, False, max(abs(lowest), abs(highest))
    if math.isnan(lowest):
        return True, bool(dense.isinf().any()), None
    return False, True, None


def nonfinite_count(tensor: Tensor) -> int:
    """How many values are NaN or Inf."""
    dense = readable(tensor)
    return 0 if dense is None else int((~dense.isfinite()).sum())


def only_minus_inf(tensor: Tensor) -> bool:
    """Whether every non-finite value is -Inf: what masks and log(0) hold."""
    dense = readable(tensor)
    return dense is None or not (bool(dense.isnan().any()) or bool(dense.isposinf().any()))


def looks_like_mask(tensor: Tensor) -> bool:
    """-Inf and a single finite value (usually 0): an additive attention mask, not broken data."""
    dense = readable(tensor)
    if dense is None or bool(dense.isnan().any()) or bool(dense.isposinf().any()):
        return False
    rest = dense[dense.isfinite()]
    return rest.numel() == 0 or bool((rest == rest[0]).all())


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors among an operation's arguments or results."""
    return instances_in(value, Tensor)


def instances_in(value: Any, kind: type[T]) -> Iterator[T]:
    """The values of one class in a nesting of lists, tuples and dicts, in order."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from instances_in(item, kind)
    elif isinstance(value, dict):
        for item in value.values():
            yield from instances_in(item, kind)


def numbers_in(value: Any) -> Iterator[float]:
    """The plain numbers among an operation's arguments."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield float(value)
    elif isinstance(value, complex):
        yield value.real
        yield value.imag
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from numbers_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from numbers_in(item)


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Copies a nesting of lists, tuples and dicts with every leaf replaced by `change(leaf)`."""
    if isinstance(value, (list, tuple)):
        return type(value)(map_leaves(item, change) for item in value)
    if isinstance(value, dict):
        return {key: map_leaves(item, change) for key, item in value.items()}
    return change(value)
