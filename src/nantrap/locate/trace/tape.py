"""The operations of a traced step, kept so that they can be run again without the user's Python code.

A tape holds no intermediate results: an operation is kept with its function, its numbers, and for each tensor where it
lived (memory, offset, shape). Running the tape computes them again, from the tensors that existed before: parameters,
buffers, the batch, constants. What was drawn at random is kept and not drawn again. Some steps cannot be run from a
tape; the tape then says why (`reason`):

-   before the loss was computed, an operation wrote into memory that existed before and is no buffer of the model;
-   a differentiable operation draws random numbers inside its kernel;
-   there were too many operations.

A custom `autograd.Function` is recorded as the operations of its forward pass, without a gradient. Whether that
matters is decided by the control: the tape must fail in the way the step did.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nantrap.finite import size_in_bytes
from nantrap.locate.torch_private import is_in_backward, schema_of
from nantrap.locate.trace import Op
from nantrap.locate.trace.storage import Memory, Where, instances_in, map_leaves, tensors_in

_MOST_OPERATIONS = 50_000
_MOST_DRAWN_BYTES = 256 * 2**20

Substitute = Callable[[Op, tuple[Any, ...], dict[str, Any]], Any]
_substitutes: list[Substitute] = []


@contextlib.contextmanager
def substituting(substitute: Substitute) -> Iterator[None]:
    """Recorded operations are offered to `substitute` first; `NotImplemented` means: as it was."""
    _substitutes.append(substitute)
    try:
        yield
    finally:
        _substitutes.remove(substitute)


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A tensor among the arguments: where it lived, and whether a gradient flowed through it."""

    where: Where
    needs_gradient: bool


class _Entry(NamedTuple):
    """One recorded operation: what it was given, where its results lived, and what it drew at random."""

    op: Op
    func: Any
    args: Any
    kwargs: Any
    results: tuple[Where, ...]
    gradient_mode: bool
    drawn: tuple[Tensor, ...] | None


class Tape:
    """Records the forward operations of one step, and runs them again.

    Attributes:
        reason: why it cannot be run again; empty if it can.
    """

    def __init__(self, buffers: Iterator[Tensor]) -> None:
        self.reason = ""
        self._memory = Memory()
        self._entries: list[_Entry] = []
        self._made: set[int] = set()
        self._outside: dict[Where, Tensor] = {}
        self._may_write = {self._memory.key(buffer) for buffer in buffers}
        self._drawn_bytes = 0

    @property
    def wanted(self) -> bool:
        """Whether the operation that comes now is to be recorded: not in a backward pass that is not differentiated."""
        return not self.reason and (not is_in_backward() or torch.is_grad_enabled())

    def before(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of an operation as they are kept."""
        if len(self._entries) >= _MOST_OPERATIONS:
            self._give_up(f"the step has more than {_MOST_OPERATIONS:,} operations")
        if schema_of(func).is_mutable:
            for tensor in _written(func, args, kwargs):
                key = self._memory.key(tensor)
                if key not in self._made and key not in self._may_write:
                    reason = f"{func} wrote into memory that existed before the step"
                    if any(where.memory == key for where in self._outside):
                        self._give_up(reason)
                    else:  # a count, a sum of losses: what was recorded until now has not read it
                        self.reason = reason
        return map_leaves(args, self._leaf), map_leaves(kwargs, self._leaf)

    def after(self, op: Op, func: Any, given: tuple[Any, Any], result: Any) -> None:
        """The operation has run."""
        if self.reason:
            return
        args, kwargs = given
        drawn: tuple[Tensor, ...] | None = None
        if torch.Tag.nondeterministic_seeded in func.tags and not _draws_nothing(func, args, kwargs):
            leaves = [leaf for leaf in instances_in((args, kwargs), _Leaf) if leaf.needs_gradient]
            if leaves:
                self._give_up(f"{func} draws random numbers inside a differentiable operation")
                return
            drawn = tuple(tensor.detach().clone() for tensor in tensors_in(result))
            self._drawn_bytes += sum(size_in_bytes(tensor) for tensor in drawn)
            if self._drawn_bytes > _MOST_DRAWN_BYTES:
                self._give_up("the step draws more random numbers than are kept")
                return
        results = tuple(self._memory.where(tensor) for tensor in tensors_in(result))
        inside = {leaf.where.memory for leaf in instances_in((args, kwargs), _Leaf)}
        self._made |= {where.memory for where in results if where.memory not in inside}
        self._entries.append(_Entry(op, func, args, kwargs, results, torch.is_grad_enabled(), drawn))

    def forward(self, loss: Tensor) -> Callable[[Any], Tensor] | None:
        """A function that computes this loss again; `None` if the tape cannot. Its argument is not used."""
        wanted = self._memory.where(loss)
        last = next((i for i, entry in reversed(list(enumerate(self._entries))) if wanted in entry.results), None)
        if last is None:
            return None
        return lambda batch: self._run(last, wanted)

    # ---- parts

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self._entries.clear()
        self._outside.clear()

    def _leaf(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        where = self._memory.where(value)
        if where.memory not in self._made and not self.reason:
            self._outside.setdefault(where, value)
        return _Leaf(where, value.requires_grad)

    def _run(self, last: int, wanted: Where) -> Tensor:
        """Run the recorded operations again up to the last one, and give the wanted value."""
        values: dict[Where, Tensor] = {}

        def resolve(leaf: Any) -> Any:
            """The tensor of an operand: made in this run, or kept from before the step."""
            if not isinstance(leaf, _Leaf):
                return leaf
            value = values.get(leaf.where)
            if value is None:
                value = self._outside[leaf.where]
                if value.grad_fn is not None:
                    value = value.detach()
            return value.detach() if value.requires_grad and not leaf.needs_gradient else value

        for entry in self._entries[: last + 1]:
            if entry.func is torch.ops.aten.detach.default:
                values.setdefault(entry.results[0], resolve(entry.args[0]))
                continue
            args, kwargs = map_leaves(entry.args, resolve), map_leaves(entry.kwargs, resolve)
            with torch.set_grad_enabled(entry.gradient_mode):
                result = _called(entry, args, kwargs)
            values.update(zip(entry.results, tensors_in(result), strict=False))
        return values[wanted]


def _called(entry: _Entry, args: Any, kwargs: Any) -> Any:
    """The result of a recorded operation: drawn values as they were, replaced by a trial, or computed again."""
    if entry.drawn is not None:
        if not schema_of(entry.func).is_mutable:
            return entry.drawn
        with torch.no_grad():
            return args[0].copy_(entry.drawn[0])
    for substitute in _substitutes:
        result = substitute(entry.op, args, kwargs)
        if result is not NotImplemented:
            return result
    return entry.func(*args, **kwargs)


def _draws_nothing(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operation that can leave values out at random (fused attention) was asked for none of that."""
    for position, argument in enumerate(schema_of(func).arguments):
        if argument.name == "dropout_p":
            given = args[position] if position < len(args) else kwargs.get(argument.name, argument.default_value)
            return bool(given == 0)
    return False


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors that an operation writes into."""
    for position, argument in enumerate(schema_of(func).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_in(args[position] if position < len(args) else kwargs.get(argument.name))
