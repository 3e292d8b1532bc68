"""`nantrap doctor --checkpoint FILE`: the share of weights that an update in pure bfloat16 cannot move.

A weight w in bfloat16 has a neighbour at a distance of ulp(w) = 2^(floor(log2|w|) - 7). An update smaller than half of
it is rounded away. Adam moves a weight by about the learning rate, so the share is that of weights with lr < ulp/2.
Pickled code is never run: the checkpoint is opened by nantrap's own readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nantrap.errors import UsageError

_STATE = ("optimizer", "exp_avg", "momentum_buffer", "scaler", "scheduler", "rng")
_TYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "float64": np.dtype("<f8"),
    "bfloat16": np.dtype("<u2"),
}
_CHUNK = 1 << 22
"""Values read together, so that a checkpoint larger than the memory can be read."""


@dataclass(frozen=True, slots=True)
class FrozenShare:
    """How many of the weights do not move at a learning rate."""

    file: str
    rate: float
    weights: int
    frozen: int

    @property
    def share(self) -> float:
        """Between 0 and 1."""
        return self.frozen / self.weights if self.weights else 0.0

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "share": self.share}


def frozen_share(path: str, rates: list[float]) -> list[FrozenShare]:
    """Count the weights of a checkpoint that a step of each learning rate cannot move in bfloat16.

    Raises:
        UsageError: The file cannot be read, or holds no weights.
    """
    from nantrap.checkpoints.audit.contents import UnreadableError
    from nantrap.checkpoints.audit.files import LocalSource
    from nantrap.checkpoints.audit.readers import read_contents

    counts = dict.fromkeys(rates, 0)
    total = 0
    try:
        with LocalSource(path) as source:
            for extent in read_contents(source).extents:
                for stored in extent.tensors:
                    name = stored.name.lower()
                    if stored.dtype.name not in _TYPES or stored.numel < 2 or any(word in name for word in _STATE):
                        continue
                    total += stored.numel
                    for values in _chunks(extent.source, extent.offset + stored.offset, stored.span, stored.dtype.name):
                        for rate in rates:
                            counts[rate] += _unmoved(values, rate)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnreadableError as error:
        raise UsageError(f"{path}: {error}") from error
    if not total:
        raise UsageError(f"{path}: no weights were found in it")
    return [FrozenShare(path, rate, total, counts[rate]) for rate in rates]


def _chunks(source: Any, offset: int, count: int, dtype: str) -> Iterator[np.ndarray[Any, np.dtype[np.float32]]]:
    """The values of a stored tensor as float32, a chunk at a time."""
    kind = _TYPES[dtype]
    for start in range(0, count, _CHUNK):
        size = min(_CHUNK, count - start)
        data = source.read(offset + start * kind.itemsize, size * kind.itemsize)
        values = np.frombuffer(data, dtype=kind, count=len(data) // kind.itemsize)
        if dtype == "bfloat16":
            yield (values.astype(np.uint32) << 16).view(np.float32)
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                yield values.astype(np.float32)


def _rounded(values: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """To the nearest bfloat16, ties to even: the upper 16 bits of a float32."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def _unmoved(values: np.ndarray[Any, np.dtype[np.float32]], rate: float) -> int:
    """How many values stay the same when a step of this size is taken either way, counted by doing it."""
    with np.errstate(over="ignore", invalid="ignore"):
        before = _rounded(np.ascontiguousarray(values))
        step = _rounded(np.array([rate], dtype=np.float32))
        same = (_rounded(before + step) == before) & (_rounded(before - step) == before)
        return int((same & np.isfinite(before)).sum())
