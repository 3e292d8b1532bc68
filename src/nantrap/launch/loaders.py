"""Which samples of the data set a batch was made of: the indices that `DataLoader` drew for it.

A loader may be read ahead (worker processes, Accelerate), so a batch is known by its tensors and not by being the last
one. What the script copied, sorted or cut after loading is not known any more; then nothing is said.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nantrap.launch.patches import Patches
from nantrap.launch.torch_private import LoaderIterator
from nantrap.locate import tensors_of

_REMEMBERED = 8


@dataclass(frozen=True, slots=True)
class _Batch:
    tensors: tuple[weakref.ref[Tensor], ...]
    indices: tuple[int, ...]


class Batches:
    """The last few batches: their tensors, weakly, and the indices they were made of."""

    def __init__(self) -> None:
        self._last: deque[_Batch] = deque(maxlen=_REMEMBERED)

    def add(self, batch: Any, indices: tuple[int, ...]) -> None:
        """A batch as the loader gave it."""
        rows = [tensor for _, tensor in tensors_of(batch) if tensor.dim() and len(tensor) == len(indices)]
        self._last.append(_Batch(tuple(weakref.ref(tensor) for tensor in rows), indices))

    def indices(self, inputs: Any) -> tuple[int, ...]:
        """The indices of the batch that these inputs are; nothing if they are a copy, a part, or another's."""
        given = [tensor for _, tensor in tensors_of(inputs)]
        for batch in reversed(self._last):
            alive = [tensor for ref in batch.tensors if (tensor := ref()) is not None]
            if any(_same_rows(one, other) for one in given for other in alive):
                return batch.indices
        return ()


def _same_rows(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same samples in the same order: all of them, at the same place in memory."""
    if one is other:
        return True
    same_shape = one.dim() and len(one) == len(other) and one.stride(0) == other.stride(0)
    return bool(same_shape and one.numel() and one.data_ptr() == other.data_ptr())


def install(patches: Patches, batches: Batches) -> None:
    """Note the indices of every batch."""

    def next_index(original: Any, self: Any) -> Any:
        index = original(self)
        _drawn(self).append(index)
        return index

    def following(original: Any, self: Any) -> Any:
        batch = original(self)
        drawn = _drawn(self)
        if drawn:
            index = drawn.popleft()
            indices = index if isinstance(index, (list, tuple)) else [index]
            if getattr(self, "_in_order", True) and all(isinstance(each, int) for each in indices):
                batches.add(batch, tuple(indices))
        return batch

    def reset(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        _drawn(self).clear()  # workers that persist: what was drawn ahead in the last epoch is thrown away
        return original(self, *args, **kwargs)

    patches.wrap_all(LoaderIterator, "_reset", reset)
    patches.wrap(LoaderIterator, "_next_index", next_index)
    patches.wrap(LoaderIterator, "__next__", following)


def _drawn(iterator: Any) -> deque[Any]:
    queue: deque[Any] = vars(iterator).setdefault("_nantrap_drawn", deque())
    return queue
