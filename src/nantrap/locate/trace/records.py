"""What a trace records: operations, where they ran, operands of guilty ones, and tensors that were bad beforehand."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from nantrap.incident import Phase
from nantrap.locate.source import Place, user_place
from nantrap.locate.torch_private import current_node, is_in_backward, next_sequence, sequence_of
from nantrap.locate.trace.storage import map_leaves, tensors_in

CLONE_LIMIT = 1 << 22
"""Tensors of more values than this are not copied."""

OUTSIDE = "loss"
"""The module name of code that runs outside every named submodule."""
_ENGINE = "_engine_run_backward"  # the function of torch below which the backward pass runs
_CHECKPOINT_FILE = os.path.join("torch", "utils", "checkpoint.py")

Spot = tuple[Phase, str, int, str | None, int, Place | None, bool, int]
"""Where an operation ran: the fields of `Op` from `phase` to `order`."""
Made = Literal["nan", "inf", "uninitialised"] | None
"""What an operation made of inputs that were finite."""


class Op(NamedTuple):
    """One operation of the traced step.

    `sources` are the operations that last wrote its input tensors, in order (-1: none of this step), through views;
    `scalars` its plain numbers; `inside`: whether any module was running; `bad` of `values` are not finite. One of the
    backward pass has the `node` and the `place` of the operation of the program whose derivative it computes: the first
    derivative if `order` is 1, the second if it is 2 (a force, a gradient penalty).
    """

    index: int  # type: ignore[assignment]  # tuples have a method of that name
    name: str
    phase: Phase
    module: str
    call: int
    node: str | None
    sequence: int
    place: Place | None
    inside: bool = False
    order: int = 0
    sources: tuple[int, ...] = ()
    scalars: tuple[float, ...] = ()
    made: Made = None
    nan: bool = False
    inf: bool = False
    absmax: float | None = None
    dtype: str = ""
    bad: int = 0
    values: int = 0


@dataclass(frozen=True, slots=True)
class Capture:
    """An origin with what it was given and what it gave: the material of the rules.

    `assumed` names operands that were not recorded and are assumed to be finite.
    """

    op: Op
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Tensor, ...]
    assumed: tuple[str, ...] = ()

    def inputs(self) -> list[Tensor]:
        """The input tensors, in order."""
        return list(tensors_in((self.args, self.kwargs)))


@dataclass(frozen=True, slots=True)
class External:
    """A tensor that was bad before the step began. `first_reader` is the first operation that computed with it.

    `during` marks one that was finite when the step began and was written since, by no operation that the trace saw.
    """

    kind: Literal["parameter", "buffer", "batch", "optimizer_state", "constant", "overwritten"]
    name: str
    tensor: Tensor
    mask: bool = False
    first_reader: int | None = None
    during: bool = False


@dataclass(frozen=True, slots=True)
class Registered:
    """The tensors known by name when the step begins."""

    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    batch: Mapping[str, Tensor] = field(default_factory=dict)
    optimizer_state: Mapping[str, Tensor] = field(default_factory=dict)


def frozen(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Copies: a parameter written by an update is restored after the replay, an activation may be written again."""
    return tuple(t.detach().clone() if t.numel() <= CLONE_LIMIT else t.detach() for t in outputs)


def frozen_arguments(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with copies of their tensors: recorded operands keep their values, whatever is written later."""
    return tuple(map_leaves(list(args), _copied))


def before_writing(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of an in-place operation as they were before it: only afterwards it is known to be guilty."""
    return tuple(
        [_copied(item) for item in arg] if isinstance(arg, (list, tuple)) else _copied(arg) for arg in args[:1]
    ) + tuple(args[1:])


def _copied(value: Any) -> Any:
    """A copy of a tensor that is not too large; anything else as it is."""
    small = isinstance(value, Tensor) and value.layout == torch.strided and value.numel() <= CLONE_LIMIT
    return value.detach().clone() if small else value


# ---- where an operation ran


class Whereabouts:
    """Follows which module runs, through hooks of all modules.

    State held: the modules that are running, how often each was called, and the forward operation that made each
    autograd node, by its sequence number.

    Args:
        root: the model, whose modules have names.
        ops: the operations of the trace so far.
        optimizer: the trace is that of an update.
    """

    def __init__(self, root: nn.Module, ops: list[Op], *, optimizer: bool) -> None:
        self._names = {id(module): name for name, module in root.named_modules()}
        self._ops = ops
        self._optimizer = optimizer
        self._calls: dict[int, int] = {}
        self._stack: list[tuple[str, int]] = []
        self._by_sequence: dict[int, int] = {}
        self._handles: list[Any] = []

    def watch(self) -> None:
        """Follow the calls of modules from here on."""
        self._handles = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]

    def unwatch(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def describe(self, index: int) -> Spot:
        """Where the operation ran that has just ended. Called by what the trace's dispatch calls: the user is three
        frames above.

        Args:
            index: of the operation in the trace.
        """
        phase: Phase = "optimizer" if self._optimizer else "forward"
        module, call = self._stack[-1] if self._stack else (OUTSIDE, 0)
        sequence = next_sequence() - 1
        node_name: str | None = None
        place: Place | None = None
        order = 0
        in_backward = is_in_backward()
        if in_backward and recomputing(sys._getframe(3)):
            in_backward = False
            around = self.maker_of_node(sequence_of(current_node()))
            if around is not None and not self._stack:
                module, call = around.module, around.call
        if in_backward and not self._stack:  # a running module inside backward is a recomputed forward
            node = current_node()
            phase, order = "backward", 1
            if node is not None:
                node_name = node.name()
                sequence = sequence_of(node)
                made_by = self.maker_of_node(sequence)
                if made_by is not None:
                    module, call, place = made_by.module, made_by.call, made_by.place
                    node_name, order = made_by.node or node_name, made_by.order + 1
                # the `backward` of a custom function, or a hook: the user's own code inside the backward pass
                place = user_place(sys._getframe(3), inside=_ENGINE) or place
        else:
            place = user_place(sys._getframe(3))
            module = "optimizer" if self._optimizer else module
        if phase != "backward":
            self._by_sequence.setdefault(sequence, index)
        elif torch.is_grad_enabled():  # create_graph: it makes a node, for a further derivative
            self._by_sequence.setdefault(next_sequence() - 1, index)
        return phase, module, call, node_name, sequence, place, bool(self._stack), order

    def maker_of_node(self, sequence: int) -> Op | None:
        """The forward operation that made the autograd node with this sequence number."""
        index = self._by_sequence.get(sequence)
        return None if index is None else self._ops[index]

    def _enter_module(self, module: nn.Module, _: Any) -> None:
        name = self._names.get(id(module))
        if name:  # the root itself and modules outside it are `loss`, unless a named one is around them
            count = self._calls.get(id(module), 0)
            self._calls[id(module)] = count + 1
            self._stack.append((name, count))
        else:
            self._stack.append(self._stack[-1] if self._stack else (OUTSIDE, 0))

    def _leave_module(self, module: nn.Module, _: Any, __: Any) -> None:
        if self._stack:
            self._stack.pop()


def recomputing(frame: FrameType | None) -> bool:
    """Whether activation checkpointing is running a forward pass again inside the backward pass."""
    if not torch.is_grad_enabled():
        return False
    while frame is not None and frame.f_code.co_name != _ENGINE:
        if frame.f_code.co_filename.endswith(_CHECKPOINT_FILE):
            return True
        frame = frame.f_back
    return False
