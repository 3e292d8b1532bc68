"""Which samples of the data set a batch was made of: the indices that `DataLoader` drew for it.

A loader may be read ahead (worker processes, Accelerate), so a batch is known by the memory of its tensors and not by
being the last one.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from torch import Tensor
from torch.utils.data.dataloader import _BaseDataLoaderIter

from nantrap.launch.patches import Patches
from nantrap.locate import tensors_of

_REMEMBERED = 8


class Batches:
    """The last few batches: where their tensors lie, and the indices they were made of."""

    def __init__(self) -> None:
        self._last: deque[tuple[frozenset[int], tuple[int, ...]]] = deque(maxlen=_REMEMBERED)

    def add(self, batch: Any, indices: tuple[int, ...]) -> None:
        """A batch as the loader gave it."""
        self._last.append((_memory(batch), indices))

    def indices(self, inputs: Any) -> tuple[int, ...]:
        """The indices of the batch that these inputs lie in; nothing if it is not known."""
        places = _memory(inputs)
        return next((indices for memory, indices in reversed(self._last) if memory & places), ())


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
            if all(isinstance(each, int) for each in indices):
                batches.add(batch, tuple(indices))
        return batch

    patches.wrap(_BaseDataLoaderIter, "_next_index", next_index)
    patches.wrap(_BaseDataLoaderIter, "__next__", following)


def _drawn(iterator: Any) -> deque[Any]:
    queue: deque[Any] | None = vars(iterator).get("_nantrap_drawn")
    if queue is None:
        queue = iterator._nantrap_drawn = deque()
    return queue


def _memory(value: Any) -> frozenset[int]:
    return frozenset(
        tensor.untyped_storage().data_ptr()
        for _, tensor in tensors_of(value)
        if isinstance(tensor, Tensor) and tensor.numel()
    )
