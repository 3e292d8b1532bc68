"""Models that no optimizer of the script trains: their calls without gradients are watched.

A script that only evaluates or generates has no optimizer, and a training script has models beside the one it trains:
an average of the weights, a teacher, a decoder. Such a model is noticed when the script puts it into eval mode, or when
it is called before any optimizer has its guard. Modules without parameters (losses, metrics) are left alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.jit import ScriptModule

from nantrap.guard.evaluations import Evaluations
from nantrap.guard.session import Session
from nantrap.launch.shared import Activity
from nantrap.locate.failure import active_replays
from nantrap.locate.hooks import Hook

_MOST_MODELS = 16
_SETTLED = 256
"""Calls in a row of models that are known already, after which no other one is expected."""


class Inference:
    """Watches models without an optimizer. Holds them weakly, and a session for each that gave a bad value.

    Args:
        make: makes the session of a model, with its number; `None` if that is not possible.
        activity: whether a guard of the process is running.
        trains: whether the script has an optimizer.
    """

    def __init__(
        self,
        make: Callable[[nn.Module, int], Session | None],
        activity: Activity,
        trains: Callable[[], bool],
    ) -> None:
        self.evaluations = Evaluations(self._session_of, "inference", of_guard=activity.of_guard)
        self.sessions: list[Session] = []
        self.settled = False
        """Only known models are called."""
        self._make = make
        self._activity = activity
        self._trains = trains
        self._known: dict[int, tuple[weakref.ref[nn.Module], tuple[Any, ...]]] = {}
        self._made: dict[int, Session | None] = {}
        self._in_eval = False
        self._in_a_row = 0

    def evaluates(self, module: nn.Module, call: Callable[[], Any], owned: Callable[[nn.Module], bool]) -> Any:
        """The script puts a module into eval mode, and PyTorch its parts: the outermost one is a model.

        Args:
            module: the module.
            call: PyTorch's own call.
            owned: whether an optimizer trains it.
        """
        if self._in_eval:
            return call()
        self._in_eval = True
        try:
            result = call()
        finally:
            self._in_eval = False
        if not owned(module):
            self.settled, self._in_a_row = False, 0
            self.watch(module)
        return result

    def called(self, module: nn.Module, owned: Callable[[nn.Module], bool]) -> None:
        """The script calls a module, and no other module does."""
        if id(module) in self._known:
            self._in_a_row += 1
            self.settled = self._in_a_row > _SETTLED
        elif (not torch.is_grad_enabled() or not self._trains()) and not owned(module):
            self._in_a_row = 0
            self.watch(module)

    def watch(self, module: nn.Module) -> None:
        """Watch the calls of a model from here on."""
        if id(module) in self._known or len(self._known) >= _MOST_MODELS or isinstance(module, ScriptModule):
            return
        if next(module.parameters(), None) is None or isinstance(module, nn.TransformerEncoderLayer):
            return  # a layer that is called by itself takes another path where it has hooks
        handles = (
            module.register_forward_pre_hook(Hook(self._before), with_kwargs=True),
            module.register_forward_hook(Hook(self._after)),
        )
        key = id(module)
        self._known[key] = weakref.ref(module, lambda _: self._known.pop(key, None)), handles

    def leave(self, modules: Iterable[nn.Module]) -> None:
        """Hands modules over to an optimizer, whose guard watches their calls from here on."""
        for module in modules:
            for handle in self._known.pop(id(module), (None, ()))[1]:
                handle.remove()

    def close(self) -> None:
        """Remove every hook, and write what was only counted."""
        for _, handles in self._known.values():
            for handle in handles:
                handle.remove()
        self._known.clear()
        self.evaluations.close()
        for session in self.sessions:
            session.recorder.close()

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if is_compiling() or active_replays or self._activity.busy:
            return
        if not torch.is_grad_enabled() or not (module.training or self._trains()):
            self.evaluations.begin(module, args, kwargs)

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        if not (is_compiling() or active_replays or self._activity.busy):
            self.evaluations.end(module, output)

    def _session_of(self, module: nn.Module) -> Session | None:
        """The session of a model, made when something is to be recorded."""
        if id(module) not in self._made:
            session = self._made[id(module)] = self._make(module, len(self.sessions) + 1)
            if session is not None:
                self.sessions.append(session)
        return self._made[id(module)]
