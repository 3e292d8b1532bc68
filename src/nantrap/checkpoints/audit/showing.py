"""`nantrap audit --show "*.alpha"`: the values of named tensors, and of named numbers, in each checkpoint."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from nantrap.checkpoints.audit.contents import Extent, StoredTensor
from nantrap.checkpoints.audit.layouts import contents_at
from nantrap.checkpoints.audit.scan import scan
from nantrap.checkpoints.audit.tally import value_of

MOST_VALUES = 8
"""The most values of a tensor that are shown."""
MOST_TENSORS = 1000


class Shown(NamedTuple):
    """A tensor of a checkpoint: its first values, and the least and the greatest finite one."""

    path: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    values: tuple[float | int | str, ...]
    low: float | None = None
    high: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The tensor as plain JSON values."""
        data = {"path": self.path, "name": self.name, "dtype": self.dtype, "shape": list(self.shape)}
        return {**data, "values": list(self.values), "min": self.low, "max": self.high}


def show(paths: Iterable[str], patterns: Sequence[str]) -> list[Shown]:
    """The tensors whose name fits one of the patterns, in the checkpoints at these paths. At most `MOST_TENSORS`."""
    found: list[Shown] = []
    for path in paths:
        for contents in contents_at(path):
            for extent in contents.extents:
                for tensor in extent.tensors:
                    if len(found) < MOST_TENSORS and _fits(tensor.name, patterns):
                        found.append(_shown(path, extent, tensor))
    return found


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _shown(path: str, extent: Extent, tensor: StoredTensor) -> Shown:
    """A tensor as it is shown: its first values, and its smallest and largest."""
    values = []
    for index in range(min(MOST_VALUES, tensor.numel)):
        raw = extent.source.read(extent.offset + _place(tensor, index), tensor.dtype.itemsize)
        values.append(_value(raw, tensor))
    low = high = None
    if tensor.dtype.has_nan and tensor.numel:
        alone = Extent(extent.source, extent.offset, extent.size, extent.label, (tensor,))
        seen = scan([alone], verify=False, workers=1).tensors
        if seen and seen[0].low <= seen[0].high:
            low, high = seen[0].low, seen[0].high
    return Shown(path, tensor.name, tensor.dtype.name, tensor.shape, tuple(values), low, high)


def _place(tensor: StoredTensor, index: int) -> int:
    """Where the element with this number, in the order of the indices, begins."""
    position = 0
    for size, step in zip(reversed(tensor.shape), reversed(tensor.stride), strict=True):
        index, rest = divmod(index, size)
        position += rest * step
    return tensor.offset + position * tensor.dtype.itemsize


def _value(raw: bytes, tensor: StoredTensor) -> float | int | str:
    """A number, as text where JSON has no number for it."""
    dtype = tensor.dtype
    if dtype.kind == "float":
        value = value_of(int.from_bytes(raw, "little"), dtype)
        return value if math.isfinite(value) else str(value)
    if dtype.kind == "complex":
        half = dtype.part
        parts = [value_of(int.from_bytes(raw[at : at + half], "little"), dtype) for at in (0, half)]
        return str(complex(*parts))
    signed = not dtype.name.startswith(("u", "bool", "bits", "quint"))
    return int.from_bytes(raw, "little", signed=signed)
