"""Anchors: the whole state remembered every so many steps, for rollback and for trials that need an older state.

An anchor covers parameters, optimizer state, buffers, the averaged weights, scheduler and scaler. The attempts made
since then are kept by reference (the function, the batch, the random streams), so that a trial can drive the same
steps again with another rate. Large models keep one anchor, small ones two, so that there is always an older one.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nantrap.guard.snapshot import UpdateSnapshot, state_bytes
from nantrap.locate import RngState, tensors_of

_TWO_BELOW_BYTES = 64 * 2**20
_BATCH_BYTES = 64 * 2**20


@dataclass(slots=True)
class Attempt:
    """One step that can be driven again."""

    step: int
    forward: Callable[[Any], Tensor]
    batches: tuple[Any, ...]
    rng: RngState
    applied: bool = True


@dataclass(slots=True)
class Anchor:
    """The whole state at the beginning of `step`."""

    step: int
    snapshot: UpdateSnapshot
    extras: list[tuple[Tensor, Tensor]]
    scheduler: Any
    scaler: Any
    rollbacks: int = 0


class Anchors:
    """The ring. Holds the copies, and the attempts since the oldest of them."""

    def __init__(
        self,
        parameters: list[nn.Parameter],
        optimizer: Optimizer,
        modules: list[nn.Module],
        *,
        scheduler: Any,
        scaler: Any,
        every: int,
        limit_bytes: int,
    ) -> None:
        self._parameters = parameters
        self._optimizer = optimizer
        self._modules = modules
        self._scheduler = scheduler
        self._scaler = scaler
        self._every = every
        self._limit_bytes = limit_bytes
        self._ring: deque[Anchor] = deque()
        self.attempts: deque[Attempt] = deque()
        self._attempt_bytes = 0
        self._due = 0
        self._size = 0

    def begin_step(self, step: int) -> None:
        """Before a step: take an anchor when one is due."""
        if self._every and step >= self._due:
            self._due = step + self._every
            self._take(step)

    def remember(self, attempt: Attempt) -> None:
        """Keep a step that can be driven again, as far as the memory for batches goes."""
        if not self._every or not self._ring:
            return
        size = sum(t.nbytes for batch in attempt.batches for _, t in tensors_of(batch))
        self.attempts.append(attempt)
        self._attempt_bytes += size
        while self.attempts and (self._attempt_bytes > _BATCH_BYTES or self.attempts[0].step < self._ring[0].step):
            old = self.attempts.popleft()
            self._attempt_bytes -= sum(t.nbytes for batch in old.batches for _, t in tensors_of(batch))

    def candidates(self) -> list[Anchor]:
        """The anchors, newest first."""
        return list(reversed(self._ring))

    def restore(self, anchor: Anchor) -> None:
        """Put the whole state back to the anchor."""
        anchor.snapshot.restore()
        with torch.no_grad():
            for tensor, kept in anchor.extras:
                tensor.copy_(kept)
        if anchor.scheduler is not None:
            self._scheduler.load_state_dict(copy.deepcopy(anchor.scheduler))
        if anchor.scaler is not None:
            self._scaler.load_state_dict(copy.deepcopy(anchor.scaler))

    def capture(self, step: int) -> Anchor:
        """The whole state as it is now, outside the ring."""
        snapshot = UpdateSnapshot(self._parameters, self._optimizer)
        snapshot.take()
        return Anchor(step, snapshot, self._extras(), *self._counters())

    def forget_after(self, step: int) -> None:
        """After a rollback: later anchors and attempts belong to a past that did not happen."""
        while self._ring and self._ring[-1].step > step:
            self._ring.pop()
        self.attempts.clear()
        self._attempt_bytes = 0
        self._due = 0

    def _take(self, step: int) -> None:
        size = state_bytes(self._parameters, self._optimizer)
        if size > self._limit_bytes:
            return
        self._size = 2 if size <= _TWO_BELOW_BYTES else 1
        if len(self._ring) >= self._size:
            anchor = self._ring.popleft()
            anchor.step = step
            anchor.snapshot.take()
            anchor.extras = self._extras()
            anchor.scheduler, anchor.scaler = self._counters()
            anchor.rollbacks = 0
        else:
            anchor = self.capture(step)
        self._ring.append(anchor)
        while self.attempts and self.attempts[0].step < self._ring[0].step:
            self.attempts.popleft()

    def _extras(self) -> list[tuple[Tensor, Tensor]]:
        tensors = [b for module in self._modules for b in module.buffers()]
        owned = {id(p) for p in self._parameters}
        tensors += [p for module in self._modules for p in module.parameters() if id(p) not in owned]
        return [(tensor, tensor.detach().clone()) for tensor in tensors]

    def _counters(self) -> tuple[Any, Any]:
        scheduler = None if self._scheduler is None else copy.deepcopy(self._scheduler.state_dict())
        scaler = None if self._scaler is None else copy.deepcopy(self._scaler.state_dict())
        return scheduler, scaler
