"""The calls of all modules, watched until each optimizer's model is known.

`nn.Module.__call__` itself is replaced, and put back when every optimizer has made its first step. From then on a
healthy run pays for the hooks of its root and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling

from nantrap.launch.torch_private import compiler_listens, leave_uncompiled
from nantrap.locate.replay import compiled_frames
from nantrap.locate.wrapping import is_entry


class ModuleCalls:
    """Watches every call of a module. Holds the plain `__call__`, and how deep the calls are nested now.

    Args:
        called: what to do before a call with gradients.
        called_from_outside: what to do before a call in training that no other module makes.
        is_own_call: whether the guard itself is running now.
    """

    def __init__(
        self,
        *,
        called: Callable[[nn.Module], None],
        called_from_outside: Callable[[nn.Module], None],
        is_own_call: Callable[[], bool],
    ) -> None:
        self.watched = False
        """Whether an optimizer waits for its model, so that calls are watched."""
        self._called = called
        self._called_from_outside = called_from_outside
        self._is_own_call = is_own_call
        self._plain_call: Any = None
        self._depth = 0
        self._compiled_unseen = compiled_frames()
        """Frames that were compiled while no call was watched."""

    def watch(self) -> None:
        """Replace `nn.Module.__call__`, so that the first call of a model shows which optimizer it belongs to."""
        if self.watched:
            return
        self.watched = True
        plain = self._plain_call = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            """A call of any module, noted before it is made."""
            if is_compiling() or compiler_listens():  # a compiled step: its model is found at its backward pass
                return plain(module, *args, **kwargs)
            if not self._is_own_call():
                if torch.is_grad_enabled():
                    self._called(module)
                if not self._depth and module.training:
                    self._called_from_outside(module)
            self._depth += 1
            try:
                return (
                    self._compiled_call(call, module, args, kwargs)
                    if is_entry(module)
                    else plain(module, *args, **kwargs)
                )
            finally:
                self._depth -= 1

        leave_uncompiled(call)
        nn.Module.__call__ = call  # type: ignore[method-assign]

    def unwatch(self, *, at_end: bool = False) -> bool:
        """Put the plain `__call__` back. Returns whether calls were watched and are not any more.

        Code that was compiled while they were watched has our `__call__` in it, and keeps it up to the end.

        Args:
            at_end: put it back in any case.
        """
        if not self.watched or (not at_end and compiled_frames() > self._compiled_unseen):
            return False
        nn.Module.__call__ = self._plain_call  # type: ignore[method-assign]
        self._plain_call, self.watched = None, False
        return True

    def _compiled_call(self, watching: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """The compiler sees `__call__` as it is without us: what it compiles now must still hold when we are gone."""
        plain, before = self._plain_call, compiled_frames()
        if plain is None:
            return module(*args, **kwargs)
        nn.Module.__call__ = plain  # type: ignore[method-assign]
        try:
            return plain(module, *args, **kwargs)
        finally:
            self._compiled_unseen += compiled_frames() - before
            if self._plain_call is not None:
                nn.Module.__call__ = watching  # type: ignore[method-assign]
