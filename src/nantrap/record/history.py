"""The last steps of a run in memory: what the rules about growth, learning rates and spikes use."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple


class StepRecord(NamedTuple):
    """One step, as the journal has it."""

    step: int
    loss: float
    grad_norm: float
    lr: tuple[float, ...]
    applied: bool
    scale: float | None = None


class History:
    """The last `limit` steps, oldest first."""

    def __init__(self, limit: int = 256) -> None:
        self._records: deque[StepRecord] = deque(maxlen=limit)
        self.first_lr: tuple[float, ...] = ()

    def add(self, record: StepRecord) -> None:
        """Append a step."""
        if not self.first_lr:
            self.first_lr = record.lr
        self._records.append(record)

    def __iter__(self) -> Iterator[StepRecord]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def applied(self) -> list[StepRecord]:
        """The steps that moved the weights."""
        return [record for record in self._records if record.applied]
