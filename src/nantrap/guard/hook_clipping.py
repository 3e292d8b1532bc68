"""A hook of the optimizer that clips by a norm which overflowed: every gradient becomes 0, the update moves nothing.

Gradients of 1e20 are finite, the sum of their squares is not. Whether a hook clips is known only when it has run. So
where the norm overflowed, the update is made carefully and the gradients are looked at after the last hook.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nantrap.guard.torch_private import has_pre_hooks

SQUARES_OVERFLOW = 1.8e19
"""From about this norm on, the sum of squares is beyond float32."""


class ZeroedByHook(contextlib.AbstractContextManager["ZeroedByHook"]):
    """Around an update: whether the hooks before it made every gradient 0. Keeps the gradients, to put them back.

    Args:
        optimizer: whose hooks are watched; nothing is done if it has none.
        parameters: that it moves.
        norm: of their gradients. Nothing is done if its square does not overflow.
    """

    def __init__(self, optimizer: Optimizer, parameters: Sequence[nn.Parameter], norm: float) -> None:
        self.found = False
        self._optimizer = optimizer
        self._parameters = parameters if norm > SQUARES_OVERFLOW and has_pre_hooks(optimizer) else ()
        self._kept: list[tuple[nn.Parameter, Tensor, Tensor]] = []
        self._handle: Any = None

    def __enter__(self) -> ZeroedByHook:
        if self._parameters:
            held = [(parameter, parameter.grad) for parameter in self._parameters]
            self._kept = [(p, grad, grad.detach().clone()) for p, grad in held if grad is not None]
            self._handle = self._optimizer.register_step_pre_hook(self._look)  # the last one to run
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.remove()

    def put_back(self) -> None:
        """The gradients as they were before the hooks."""
        with torch.no_grad():
            for parameter, gradient, copied in self._kept:
                gradient.copy_(copied)
                parameter.grad = gradient

    def _look(self, *_: Any) -> None:
        left = [parameter.grad for parameter, _, _ in self._kept if parameter.grad is not None]
        self.found = bool(left) and not any(bool(gradient.detach().any()) for gradient in left)
