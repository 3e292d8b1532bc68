"""What has been seen of one tensor so far, piece by piece, whoever read the pieces and in whatever order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from nantrap.checkpoints.audit.contents import Extent, StoredTensor
from nantrap.finite import dtype_name, first_nonfinite_index, readable, tensor_stats
from nantrap.incident import TensorStats

_PLAIN = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
"""What `aminmax` takes as it is; to ask for more would cost a tenth of a chunk's time."""


@dataclass(frozen=True, slots=True)
class TensorScan:
    """What a tensor holds. `low` and `high` are of the finite values; `stats` is there only after an alarm."""

    tensor: StoredTensor
    low: float
    high: float
    stats: TensorStats | None = None
    first_index: tuple[int, ...] | None = None

    @property
    def is_constant(self) -> bool:
        """Whether all values are the same number."""
        return self.stats is None and self.low == self.high


@dataclass(slots=True)
class Tally:
    """The extremes of the finite values, the number of the others, and how many values lie before the first of them."""

    tensor: StoredTensor
    low: float = math.inf
    high: float = -math.inf
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    first: int | None = None

    def look(self, buffer: Any, offset: int, count: int, before: int) -> None:
        """Look at `count` values at byte `offset` of `buffer`; `before` of the tensor's values lie before them."""
        values = torch.frombuffer(buffer, dtype=self.tensor.dtype, count=count, offset=offset)
        dense = values if self.tensor.dtype in _PLAIN else readable(values)
        if dense is None:
            return  # a dtype that knows no NaN
        low, high = (float(extreme) for extreme in torch.aminmax(dense))
        if math.isfinite(low) and math.isfinite(high):
            self._widen(low, high)
            return
        stats = tensor_stats(values)  # slow and exact
        index = first_nonfinite_index(values)
        assert index is not None
        first = before + index[0]
        if stats.min is not None and stats.max is not None:
            self._widen(stats.min, stats.max)
        self.nan += stats.nan
        self.posinf += stats.posinf
        self.neginf += stats.neginf
        self.first = first if self.first is None else min(self.first, first)

    def add(self, other: Tally) -> None:
        """Take over what another worker saw of the same tensor."""
        self._widen(other.low, other.high)
        self.nan += other.nan
        self.posinf += other.posinf
        self.neginf += other.neginf
        if other.first is not None:
            self.first = other.first if self.first is None else min(self.first, other.first)

    def result(self) -> TensorScan:
        """The verdict, once all pieces were seen."""
        if self.first is None:
            return TensorScan(self.tensor, self.low, self.high)
        some_are_finite = self.low <= self.high
        stats = TensorStats(
            shape=self.tensor.shape,
            dtype=dtype_name(self.tensor.dtype),
            numel=self.tensor.numel,
            nan=self.nan,
            posinf=self.posinf,
            neginf=self.neginf,
            min=self.low if some_are_finite else None,
            max=self.high if some_are_finite else None,
        )
        return TensorScan(self.tensor, self.low, self.high, stats, self.tensor.index_at(self.first))

    def _widen(self, low: float, high: float) -> None:
        self.low, self.high = min(self.low, low), max(self.high, high)


def can_be_cut(tensor: StoredTensor) -> bool:
    """Whether any piece of its bytes, cut between values, holds values of this tensor and nothing else."""
    return tensor.is_dense and tensor.offset % tensor.dtype.itemsize == 0


def look_at_whole(extent: Extent, tensor: StoredTensor) -> TensorScan | None:
    """A strided view into a larger storage: what lies between its elements is not its own, so it is built to count.

    `None` if the file became shorter meanwhile.
    """
    data = bytearray(extent.source.read(extent.offset + tensor.offset, tensor.end - tensor.offset))
    if len(data) < tensor.end - tensor.offset:
        return None
    values = torch.frombuffer(data, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride)
    stats = tensor_stats(values)
    low = math.inf if stats.min is None else stats.min
    high = -math.inf if stats.max is None else stats.max
    if stats.nonfinite == 0:
        return TensorScan(tensor, low, high)
    return TensorScan(tensor, low, high, stats, first_nonfinite_index(values))
