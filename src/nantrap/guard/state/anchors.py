"""Anchors: copies of the whole state, taken every N steps, for rollback and for trials that need an older state.

An anchor covers parameters, optimizer state, buffers, the averaged weights, scheduler and scaler; one that was not
finite to begin with (weights loaded from a bad checkpoint) cannot be restored. The attempts made since then are kept by
reference (the function, the batch, the random streams), so that a trial can run the same steps again with another
learning rate. Large models keep one anchor, small ones two, so that there is always an older one, and a near one that
is taken more often: a rollback to it loses few steps.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nantrap import finite
from nantrap.guard.state.protected import Protected
from nantrap.guard.state.room import has_room
from nantrap.guard.state.rows import LedgerRow, Writer, copy_rows, put_back
from nantrap.guard.state.scaling import Scaling
from nantrap.guard.state.snapshot import UpdateSnapshot, state_bytes
from nantrap.guard.torch_private import buffers_of
from nantrap.locate import RngState

_TWO_BELOW_BYTES = 64 * 2**20
_BATCH_BYTES = 64 * 2**20
_NEAR_STEPS = 8
"""How often the near anchor is taken: a copy of a small state costs about 1 % of a step."""


@dataclass(slots=True)
class Attempt:
    """One step that can be run again."""

    step: int
    forward: Callable[[Any], Tensor]
    batches: tuple[Any, ...]
    rng: RngState
    applied: bool = True
    nbytes: int = 0


@dataclass(slots=True)
class Anchor:
    """The whole state at the beginning of `step`."""

    step: int
    snapshot: UpdateSnapshot
    beside: list[LedgerRow]
    scheduler: Any
    scaler: Any
    ema: Any = None
    exempt: frozenset[tuple[int, str]] = frozenset()
    rollbacks: int = 0
    factor: float = 1.0
    rng: RngState | None = None

    finite: bool | None = None

    def usable(self) -> bool:
        """Whether it was finite, and the optimizer still has the same groups. Reads the device when first asked."""
        if self.finite is None:
            buffers = [row for row in self.beside if row.holder is not None and row.place not in self.exempt]
            copies = [row.copy for row in buffers if row.copy is not None]
            self.finite = not finite.any_nonfinite([*self.snapshot.copies, *copies])
        return self.snapshot.fits() and self.finite

    def holds_bad(self, buffers: Sequence[Tensor]) -> bool:
        """Whether one of these buffers was non-finite when the anchor was made: to go back would repair nothing."""
        held = [(row.holder.get(row.key), row.copy) for row in self.beside if row.holder is not None]
        return finite.any_nonfinite([kept for now, kept in held if any(now is buffer for buffer in buffers)])


def rows_beside(modules: list[nn.Module], others: list[nn.Parameter]) -> list[LedgerRow]:
    """Copies of what no snapshot holds: buffers by their place in the module (a forward pass may replace them), and
    parameters of averages and of other optimizers."""
    tables = [buffers_of(m) for module in modules for m in module.modules()]
    holders = {id(table): table for table in tables}
    rows = [
        LedgerRow(key, Writer.FORWARD, tensor, holder=holder, key=key)
        for holder in holders.values()
        for key, tensor in holder.items()
    ]
    rows += [LedgerRow("", Writer.UPDATE, tensor) for tensor in others]
    copy_rows(rows)
    return rows


class Anchors:
    """The ring. Holds the copies, and the attempts since the oldest of them.

    Args:
        protected: the state of the run.
        scaling: the loss scale.
        ema: an average of the weights, as the user gave it.
        every: number of steps between two anchors of the ring; 0 for none.
        limit_bytes: no anchor is kept when it would take more memory than this.
    """

    def __init__(self, protected: Protected, scaling: Scaling, *, ema: Any, every: int, limit_bytes: int) -> None:
        self.scaling = scaling
        self._parameters = protected.members.parameters
        self._optimizer = protected.optimizer
        self._modules = protected.modules
        # sharded layers gather their weights into parameters that live for one pass: what is there now is the state
        self._gathers = any(hasattr(parameter, "to_local") for parameter in self._parameters)
        self._beside = self._find_others()
        self._scheduler = protected.scheduler
        self._ledger = protected.ledger
        # an average that is not a module can be restored only if it has a method for it
        stateful = hasattr(ema, "state_dict") and hasattr(ema, "load_state_dict") and not isinstance(ema, nn.Module)
        self._ema = ema if stateful else None
        self._every = every
        self._limit_bytes = limit_bytes
        self._ring: deque[Anchor] = deque()
        self._near: Anchor | None = None
        self._ring_due = 0
        self.attempts: deque[Attempt] = deque()
        self._attempt_bytes = 0
        self.due: float = 0 if every else math.inf
        """From which step on the next anchor is taken."""
        self._size = 0
        self.factor = 1.0
        """The factor by which rollbacks have lowered the learning rates; each anchor stores the factor of its time."""

    @property
    def keeps_attempts(self) -> bool:
        """Whether steps are worth keeping: there is an older state from which they can be run again."""
        return bool(self._ring)

    def begin_step(self, step: int) -> None:
        """Before a step: take an anchor when one is due."""
        if not self._every or step < self.due:
            return
        if step >= self._ring_due:
            self._ring_due = step + self._every
            self._take(step)
        elif self._near is None:
            self._near = self._captured(step)
        elif self._can_fill(self._near):
            self._fill(self._near, step)
        self.due = min(self._ring_due, step + _NEAR_STEPS) if self._size > 1 else self._ring_due

    def remember(self, attempt: Attempt) -> None:
        """Keep a step that can be run again, as long as the memory for batches allows it."""
        if not self._every or not self._ring:
            return
        self.attempts.append(attempt)
        self._attempt_bytes += attempt.nbytes
        while self.attempts and (self._attempt_bytes > _BATCH_BYTES or self.attempts[0].step < self._ring[0].step):
            self._attempt_bytes -= self.attempts.popleft().nbytes

    def candidates(self) -> list[Anchor]:
        """The anchors to which the run can be restored, newest first."""
        near = [] if self._near is None or self._near.step < self._ring[-1].step else [self._near]
        return [anchor for anchor in (*near, *reversed(self._ring)) if anchor.usable()]

    def restore(self, anchor: Anchor) -> None:
        """Put the whole state back to the anchor."""
        anchor.snapshot.restore()
        put_back((row, row.tensor, row.copy) for row in anchor.beside)
        if anchor.scheduler is not None:
            self._scheduler.load_state_dict(copy.deepcopy(anchor.scheduler))
        self.scaling.restore(anchor.scaler)
        if self._ema is not None:
            self._ema.load_state_dict(copy.deepcopy(anchor.ema))

    def capture(self, step: int) -> Anchor:
        """The whole state as it is now, outside the ring."""
        anchor = Anchor(step, UpdateSnapshot(self._parameters, self._optimizer), [], None, None)
        self._fill(anchor, step)
        return anchor

    def forget_newest(self, step: int) -> None:
        """Drop what was taken after this step, which is known to be bad now; attempts stay."""
        if self._near is not None and self._near.step > step:
            self._near = None
        if self._ring and self._ring[-1].step > step:
            self._ring.pop()
        for attempt in self.attempts:
            if attempt.step == step:
                attempt.applied = False

    def forget_after(self, step: int, *, now: int = 0) -> None:
        """After a rollback: drop later anchors and attempts, which belong to the part of the run that was undone.

        The next anchor is not due immediately: it would hold the state that was just restored. Nor is a near one: a run
        that diverges again soon is to go back to an older state.
        """
        if self._near is not None and self._near.step > step:
            self._near = None
        while self._ring and self._ring[-1].step > step:
            self._ring.pop()
        self.attempts.clear()
        self._attempt_bytes = 0
        if self._every:
            self.due = self._ring_due = now + self._every if now else 0

    def _take(self, step: int) -> None:
        """Copy the whole state, into the memory of the oldest anchor where there are enough of them."""
        size = state_bytes(self._parameters, self._optimizer)
        if size > self._limit_bytes:
            return
        self._size = 2 if size <= _TWO_BELOW_BYTES else 1
        anchor = self._captured(step) if len(self._ring) < self._size else None
        if anchor is None:
            if not self._ring or not self._can_fill(self._ring[0]):
                self._size = min(self._size, len(self._ring))
                return
            anchor = self._ring.popleft()
            self._fill(anchor, step)
        self._ring.append(anchor)
        while self.attempts and self.attempts[0].step < self._ring[0].step:
            self._attempt_bytes -= self.attempts.popleft().nbytes

    def _captured(self, step: int) -> Anchor | None:
        """One more copy of the state, if its device has room for it beside what the run needs."""
        if not has_room(self._parameters[0].device, state_bytes(self._parameters, self._optimizer), known=step > 0):
            return None
        try:
            return self.capture(step)
        except torch.OutOfMemoryError:
            return None

    def _can_fill(self, anchor: Anchor) -> bool:
        """Whether an anchor can be overwritten: one from before the optimizer had its state needs more memory."""
        more = state_bytes(self._parameters, self._optimizer) - anchor.snapshot.nbytes
        return more <= 0 or has_room(self._parameters[0].device, more)

    def _find_others(self) -> list[nn.Parameter]:
        """The parameters of the modules that are not the optimizer's: averages, and those of other optimizers."""
        own = set(map(id, self._parameters))
        return [p for module in self._modules for p in module.parameters() if id(p) not in own]

    def _fill(self, anchor: Anchor, step: int) -> None:
        """Overwrite an anchor with the state as it is now."""
        anchor.step, anchor.rollbacks, anchor.factor = step, 0, self.factor
        anchor.finite = None
        anchor.rng = RngState.capture()
        anchor.snapshot.take()
        if not self._gathers:
            self._beside = self._find_others()
        anchor.beside = rows_beside(self._modules, self._beside)
        anchor.scheduler = None if self._scheduler is None else copy.deepcopy(self._scheduler.state_dict())
        anchor.scaler = self.scaling.capture()
        anchor.ema = None if self._ema is None else copy.deepcopy(self._ema.state_dict())
        anchor.exempt = self._ledger.exempt_places()
