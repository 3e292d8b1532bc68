"""Models that no optimizer of the script trains: their calls without gradients are watched.

A script that only evaluates or generates has no optimizer, and a training script has models beside the one it trains:
an average of the weights, a teacher, a decoder. Such a model is noticed when the script puts it into eval mode, or when
it is called before any optimizer has its guard. Modules without parameters (losses, metrics) are left alone.

A sampler calls parts of the trained model (`self.unet(x)`, `self.vae.decode(z)`), whose guard watches the model alone.
Which parts these are shows in the first evaluations, in which the calls of all modules are looked at.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.jit import ScriptModule

from nantrap.guard.evaluations import Evaluations
from nantrap.guard.session import Session
from nantrap.launch.shared import Activity
from nantrap.locate.failure import active_replays
from nantrap.locate.hooks import Hook

if TYPE_CHECKING:
    from nantrap.launch.script_loop import ScriptLoop

_MOST_MODELS = 16
_SETTLED = 256
"""Calls in a row of models that are known already, after which no other one is expected."""
_MOST_PARTS = 64
_ROUNDS = 2
"""Evaluations without a new part, after which none is expected."""


class _Watched(NamedTuple):
    """A module whose calls are watched."""

    module: weakref.ref[nn.Module]
    handles: tuple[Any, ...]
    evaluations: Evaluations


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
        self._known: dict[int, _Watched] = {}
        self._made: dict[int, Session | None] = {}
        self._in_eval = False
        self._in_a_row = 0
        self._parts = 0
        self._rounds = 0

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
        else:
            self._rounds += 1
        return result

    @property
    def looks_for_parts(self) -> bool:
        """Whether the calls of all modules are to be looked at in the evaluation that begins."""
        return 0 < self._rounds <= _ROUNDS and self._parts < _MOST_PARTS

    def called(self, module: nn.Module, guarded_by: Callable[[nn.Module], ScriptLoop | None]) -> None:
        """The script calls a module, and no other module does."""
        if id(module) in self._known:
            self._in_a_row += 1
            self.settled = self._in_a_row > _SETTLED
        elif self._is_watchable(module) and (not torch.is_grad_enabled() or not self._trains()):
            loop = guarded_by(module)
            if loop is None:
                self._in_a_row = 0
                self.watch(module)
            elif module is not loop.model and not (torch.is_grad_enabled() or module.training):
                self._parts += 1
                self._rounds = 0
                self._put(module, loop.collector.evaluations)

    def watch(self, module: nn.Module) -> None:
        """Watch the calls of a model from here on."""
        if id(module) not in self._known and len(self._known) < _MOST_MODELS and self._is_watchable(module):
            self._put(module, self.evaluations)

    def _is_watchable(self, module: nn.Module) -> bool:
        if isinstance(module, (ScriptModule, nn.TransformerEncoderLayer)):
            return False  # the one takes no hooks; the other takes another path where it has hooks
        return next(module.parameters(), None) is not None

    def _put(self, module: nn.Module, evaluations: Evaluations) -> None:
        """Put hooks on a module whose calls without gradients go there."""
        handles = (
            module.register_forward_pre_hook(Hook(self._before), with_kwargs=True),
            module.register_forward_hook(Hook(self._after)),
        )
        key = id(module)
        self._known[key] = _Watched(weakref.ref(module, lambda _: self._known.pop(key, None)), handles, evaluations)

    def leave(self, modules: Iterable[nn.Module]) -> None:
        """Hands modules over to an optimizer, whose guard watches their calls from here on."""
        for module in modules:
            watched = self._known.pop(id(module), None)
            for handle in () if watched is None else watched.handles:
                handle.remove()

    def close(self) -> None:
        """Remove every hook, and write what was only counted."""
        for watched in self._known.values():
            for handle in watched.handles:
                handle.remove()
        self._known.clear()
        self.evaluations.close()
        for session in self.sessions:
            session.recorder.close()

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if is_compiling() or active_replays or self._activity.busy:
            return
        watched = self._known.get(id(module))
        if watched is not None and (not torch.is_grad_enabled() or not (module.training or self._trains())):
            watched.evaluations.begin(module, args, kwargs)

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        watched = self._known.get(id(module))
        if watched is not None and not (is_compiling() or active_replays or self._activity.busy):
            watched.evaluations.end(module, output)

    def _session_of(self, module: nn.Module) -> Session | None:
        """The session of a model, made when something is to be recorded."""
        if id(module) not in self._made:
            session = self._made[id(module)] = self._make(module, len(self.sessions) + 1)
            if session is not None:
                self.sessions.append(session)
        return self._made[id(module)]
