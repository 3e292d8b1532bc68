"""`nantrap doctor --checkpoint FILE`: the share of weights that an update in pure bfloat16 cannot move.

A weight w in bfloat16 has a neighbour at a distance of ulp(w) = 2^(floor(log2|w|) - 7). An update smaller than half of
it is rounded away. Adam moves a weight by about the learning rate, so the share is that of weights with lr < ulp/2.
Pickled code is never run: the checkpoint is opened by nantrap's own readers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nantrap.errors import UsageError

if TYPE_CHECKING:
    import torch

_STATE = ("optimizer", "exp_avg", "momentum_buffer", "scaler", "scheduler", "rng")


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


def frozen_share(path: str, rates: list[float]) -> list[FrozenShare]:
    """Count the weights of a checkpoint that a step of each rate cannot move in bfloat16.

    Raises:
        UsageError: The file cannot be read, or holds no weights.
    """
    from nantrap.checkpoints.audit.contents import UnreadableError
    from nantrap.checkpoints.audit.readers import read_contents
    from nantrap.checkpoints.audit.source import LocalSource

    counts = dict.fromkeys(rates, 0)
    total = 0
    try:
        with LocalSource(path) as source:
            for extent in read_contents(source).extents:
                for stored in extent.tensors:
                    name = stored.name.lower()
                    if not stored.dtype.is_floating_point or stored.numel < 2 or any(word in name for word in _STATE):
                        continue
                    values = _values(
                        extent.source.read(extent.offset + stored.offset, stored.span * stored.dtype.itemsize),
                        stored.dtype,
                    )
                    total += stored.numel
                    for rate in rates:
                        counts[rate] += _unmoved(values, rate)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnreadableError as error:
        raise UsageError(f"{path}: {error}") from error
    if not total:
        raise UsageError(f"{path}: no weights were found in it")
    return [FrozenShare(path, rate, total, counts[rate]) for rate in rates]


def _values(data: bytes, dtype: torch.dtype) -> torch.Tensor:
    import torch

    if not data:
        return torch.empty(0)
    return torch.frombuffer(bytearray(data), dtype=dtype).to(torch.float32)


def _unmoved(values: torch.Tensor, rate: float) -> int:
    """How many values stay the same when a step of this size is taken either way, counted by doing it."""
    import torch

    before = values.to(torch.bfloat16)
    finite = torch.isfinite(before)
    up, down = before + torch.tensor(rate, dtype=torch.bfloat16), before - torch.tensor(rate, dtype=torch.bfloat16)
    return int(((up == before) & (down == before) & finite).sum())
