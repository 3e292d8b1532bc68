"""Copies of the state: of one update, so that it can be undone bit for bit, and of everything, for a way back.

UpdateSnapshot   parameters and optimizer state. What is restored keeps its identity: the same tensor objects, with
                 their old contents, so that every reference to them (of a scheduler, a fused kernel, the user) stays
                 valid. State that the step created is removed.
Anchor           the whole state: also buffers, averaged weights, scheduler and scaler. One that was not finite to
                 begin with (weights loaded from a bad checkpoint) cannot be restored.
Anchors          a ring of these, filled every N steps, for rollback and for trials that need an older state. The
                 attempts made since then are kept by reference (the function, the batch, the random streams), so that
                 a trial can run the same steps again with another learning rate. Large models keep one anchor, small
                 ones two, so that there is always an older one, and a near one that is taken more often: a rollback to
                 it loses few steps.
has_room         whether an accelerator has memory to spare for a copy that the run does not need.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nantrap import finite
from nantrap.finite import size_in_bytes
from nantrap.guard.state.rows import LedgerRow, Writer, copy_rows, put_back
from nantrap.guard.torch_private import buffers_of, copy_parts, restore_parts
from nantrap.locate import RngState, layers_of, state_tensors

if TYPE_CHECKING:
    from nantrap.guard.state.protected import Protected
    from nantrap.guard.state.scaling import Scaling

_SPARE = 1 / 20
"""The share of the device's memory that stays free beside a copy and beside the most that a step has needed so far."""
_SPARE_BEFORE = 1 / 2
"""The same while no step was made, so that what a step needs is not known."""


def has_room(device: torch.device, nbytes: int, *, known: bool = True) -> bool:
    """Whether so many bytes can be kept on a device without taking them from the run.

    Args:
        device: where; on a CPU, and where PyTorch cannot tell, the answer is yes.
        nbytes: the size of the copy.
        known: a step was made already, so that the peak of the allocator says what the run needs.
    """
    if device.type in ("cpu", "meta"):
        return True
    module = torch.get_device_module(device)
    ask = getattr(torch.accelerator, "get_memory_info", None) or getattr(module, "mem_get_info", None)
    if ask is None or not hasattr(module, "max_memory_allocated"):
        return True
    try:
        free, total = ask(device)
        cached = (
            module.memory_reserved(device) if hasattr(module, "memory_reserved") else module.memory_allocated(device)
        )
        never_used = free + cached - module.max_memory_allocated(device)
    except (RuntimeError, NotImplementedError):
        return True
    return bool(never_used - nbytes >= total * (_SPARE if known else _SPARE_BEFORE))


@dataclass(frozen=True, slots=True)
class _Layer:
    """State and hyper-parameters of one optimizer. Tensors of the state are kept by identity, their contents apart."""

    optimizer: Optimizer
    states: dict[Any, dict[str, Any]]
    groups: list[dict[str, Any]]

    @classmethod
    def of(cls, optimizer: Optimizer, tensors: list[Tensor]) -> _Layer:
        """An optimizer as it is now; the tensors of its state are added to `tensors`."""
        states: dict[Any, dict[str, Any]] = {}
        for key, state in optimizer.state.items():
            if not isinstance(state, dict):
                continue
            kept: dict[str, Any] = {}
            for name, value in state.items():
                if isinstance(value, Tensor):
                    tensors.append(value)
                    kept[name] = value
                else:
                    kept[name] = copied(value)
            states[key] = kept
        groups = [
            {name: copied(value) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        return cls(optimizer, states, groups)

    def restore(self) -> None:
        """Put back all but the contents of the state's tensors."""
        live = self.optimizer.state
        for key in [key for key in live if key not in self.states]:
            del live[key]
        for key, kept in self.states.items():
            state = live[key]
            state.clear()
            state.update({name: _restored(value) for name, value in kept.items()})
        for group, kept in zip(self.optimizer.param_groups, self.groups, strict=True):
            for name in [name for name in group if name != "params" and name not in kept]:
                del group[name]
            for name, value in kept.items():
                live_value = group.get(name)
                if isinstance(value, Tensor) and isinstance(live_value, Tensor):
                    live_value.copy_(value)
                else:
                    group[name] = _restored(value)


class UpdateSnapshot:
    """One copy of parameters, optimizer state and hyper-parameters; `take` again reuses its memory."""

    def __init__(self, parameters: list[torch.nn.Parameter], optimizer: Optimizer) -> None:
        self._parameters = parameters
        self._optimizer = optimizer
        self._originals: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._layers: list[_Layer] = []

    def take(self) -> None:
        """Remember everything as it is now."""
        tensors: list[Tensor] = list(self._parameters)
        self._layers = [_Layer.of(layer, tensors) for layer in layers_of(self._optimizer)]
        if not _same(tensors, self._originals):
            self._originals, self._copies = [], []  # memory may end in the middle: half a copy is none
            self._copies = [copied(tensor) for tensor in tensors]
            self._originals = tensors
            return
        with torch.no_grad():
            copy_parts(self._copies, tensors)

    def restore(self) -> None:
        """Put everything back as it was at `take`, without counting it as a write. May be called again."""
        if self._originals:
            restore_parts(self._originals, self._copies)
        for layer in self._layers:
            layer.restore()

    def fits(self) -> bool:
        """Whether the optimizer still has the parameters and the groups it had at `take`."""
        count = len(self._parameters)
        return _same(self._parameters, self._originals[:count]) and all(
            len(layer.optimizer.param_groups) == len(layer.groups) for layer in self._layers
        )

    def was_finite(self, tensor: Tensor) -> bool:
        """Whether `tensor` (by identity) was finite at `take`; a tensor that was made since counts as finite."""
        for original, copied in zip(self._originals, self._copies, strict=True):
            if original is tensor:
                return not finite.any_nonfinite([copied])
        return True

    def value_of(self, tensor: Tensor) -> Tensor | None:
        """The copy of `tensor` (by identity) at `take`; `None` if it is not among them."""
        found = zip(self._originals, self._copies, strict=True)
        return next((copied for original, copied in found if original is tensor), None)

    @property
    def copies(self) -> list[Tensor]:
        """The copies of parameters and optimizer state."""
        return self._copies

    @property
    def nbytes(self) -> int:
        """Memory the copies take."""
        return sum(map(size_in_bytes, self._copies))


def state_bytes(parameters: list[torch.nn.Parameter], optimizer: Optimizer) -> int:
    """Memory that one snapshot would take."""
    return sum(map(size_in_bytes, [*parameters, *state_tensors(optimizer)]))


def _same(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(tensors) == len(others) and all(a is b for a, b in zip(tensors, others, strict=True))


def copied(value: Any) -> Any:
    """A copy that later in-place changes cannot reach; plain numbers and strings are their own copy."""
    if isinstance(value, Tensor):
        own = finite.copy_of(value)
        return value if own is None else own
    if isinstance(value, (list, tuple)):
        return type(value)(copied(item) for item in value)
    if isinstance(value, (int, float, str, bool, type(None))):
        return value
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return copy.copy(value)


def _restored(value: Any) -> Any:
    # lists are copied again so that restoring twice gives the same thing twice; tensors in `state` are the originals
    return copied(value) if isinstance(value, (list, tuple, dict)) else value


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

    @property
    def nbytes(self) -> int:
        """Memory that the copies of parameters and optimizer state take."""
        return sum(anchor.snapshot.nbytes for anchor in (*self._ring, self._near) if anchor is not None)

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

    def forget_after(self, step: int, *, now: int = 0, diverged: bool = True) -> None:
        """After a rollback: drop later anchors and attempts, which belong to the part of the run that was undone.

        The next anchor is not due immediately: it would hold the state that was just restored. Nor is a near one where
        the run diverged: if it does so again soon, it is to go back to an older state.
        """
        if self._near is not None and self._near.step > step:
            self._near = None
        while self._ring and self._ring[-1].step > step:
            self._ring.pop()
        self.attempts.clear()
        self._attempt_bytes = 0
        if self._every:
            self.due = self._ring_due = now + self._every if now else 0
            if now and not diverged:
                self.due = min(self.due, now + _NEAR_STEPS)

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
