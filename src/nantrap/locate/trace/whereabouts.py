"""Where an operation of a traced step ran: its phase, module, autograd node and line."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from nantrap.incident import Phase
from nantrap.locate.source import Place, user_place
from nantrap.locate.torch_private import current_node, is_in_backward, next_sequence, sequence_of
from nantrap.locate.trace.records import Op

OUTSIDE = "loss"
"""The module name of code that runs outside every named submodule."""
_ENGINE = "_engine_run_backward"  # the function of torch below which the backward pass runs
_CHECKPOINT_FILE = os.path.join("torch", "utils", "checkpoint.py")


class Spot(NamedTuple):
    """Where an operation ran, as in `Op`."""

    phase: Phase
    module: str
    call: int
    node: str | None
    sequence: int
    place: Place | None
    inside: bool


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
        in_backward = is_in_backward()
        if in_backward and recomputing(sys._getframe(3)):
            in_backward = False
            around = self.maker_of_node(sequence_of(current_node()))
            if around is not None and not self._stack:
                module, call = around.module, around.call
        if in_backward and not self._stack:  # a running module inside backward is a recomputed forward
            node = current_node()
            phase = "backward"
            if node is not None:
                node_name = node.name()
                sequence = sequence_of(node)
                made_by = self.maker_of_node(sequence)
                if made_by is not None:
                    module, call, place = made_by.module, made_by.call, made_by.place
                # the `backward` of a custom function, or a hook: the user's own code inside the backward pass
                place = user_place(sys._getframe(3), inside=_ENGINE) or place
        else:
            place = user_place(sys._getframe(3))
            module = "optimizer" if self._optimizer else module
        if phase != "backward" and sequence not in self._by_sequence:
            self._by_sequence[sequence] = index
        return Spot(phase, module, call, node_name, sequence, place, bool(self._stack))

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
