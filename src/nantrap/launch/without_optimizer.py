"""What a script does without an optimizer: models that it only calls, and losses or weights that it handles by itself.

*Models* (`Inference`). A script that only evaluates or generates has no optimizer, and a training script has models
beside the one it trains: an average of the weights, a teacher, a decoder. Their calls without gradients are watched.
Such a model is noticed when the script puts it into eval mode, or when it is called before any optimizer has its guard.
Modules without parameters (losses, metrics) are left alone. A sampler calls parts of the trained model (`self.unet(x)`,
`self.vae.decode(z)`), whose guard watches the model alone. Which parts these are shows in the first evaluations, in
which the calls of all modules are looked at.

*Values* (`LooseValues`). A loss is only computed, or weights are updated by hand: there is no step to refuse. A value
with a graph that the script asks about, or runs a backward pass from, is diagnosed all the same when it is not finite:
where it began and why, as an incident that is only reported.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.jit import ScriptModule

from nantrap import finite
from nantrap.guard.evaluations import Evaluations
from nantrap.guard.session import Session, Setup
from nantrap.guard.window import Loss, Micro, Window
from nantrap.incident.wording import some_of
from nantrap.launch.position import ScriptNeighbours
from nantrap.launch.roots import names_in_script
from nantrap.launch.script_loop import ScriptLoop
from nantrap.launch.settings import RunSettings
from nantrap.launch.shared import Activity, Shared
from nantrap.locate.failure import active_replays
from nantrap.locate.hooks import Hook
from nantrap.locate.nodes import leaves_below
from nantrap.locate.twoline.autopsy import examine
from nantrap.record import StepRecord

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


_MOST_DIAGNOSED = 3
_KEPT = 64


class LooseValues:
    """Diagnoses values that belong to no optimizer. Holds a loop over the tensors below the first bad one.

    Args:
        make: makes a loop over leaves of a graph; `None` if that is not possible.
        activity: whether a guard of the process is running.
        say: prints a line.
    """

    def __init__(
        self, make: Callable[[list[Tensor]], ScriptLoop | None], activity: Activity, say: Callable[[str], None]
    ) -> None:
        self.loop: ScriptLoop | None = None
        self.leaves: list[weakref.ref[Tensor]] = []
        """Tensors that a script without an optimizer trains by hand."""
        self.passes = 0
        """How many backward passes the script made."""
        self.seen = 0
        """How many values were not finite."""
        self._make = make
        self._activity = activity
        self._say = say
        self._poisoned = False
        self._losses: deque[StepRecord] = deque(maxlen=_KEPT)
        self._last: weakref.ref[Tensor] | None = None

    def note_backward(self, loss: Tensor) -> None:
        """The script runs a backward pass from this loss: the tensors below it are checked at the end."""
        if not self.leaves:
            self.leaves = [weakref.ref(leaf) for leaf in leaves_below(loss)]
        self.look(loss)
        if loss.is_cpu and loss.numel() == 1:
            value = finite.value_of(loss)
            if math.isfinite(value):
                self._losses.append(StepRecord(self.passes, value, math.nan, (), applied=True))
        self.passes += 1

    def look(self, tensor: Tensor) -> None:
        """The script uses a value with a graph. If it is not finite, the first few are diagnosed, and all counted."""
        if tensor.grad_fn is None or (self._last is not None and self._last() is tensor):
            return
        with self._activity.of_guard():
            self._look(tensor)

    def _look(self, tensor: Tensor) -> None:
        """Count a value that is not finite, and diagnose the first few of them."""
        if not finite.any_nonfinite([tensor.detach()]):
            return
        self._last = weakref.ref(tensor)
        self.seen += 1
        if self.seen > _MOST_DIAGNOSED:
            return
        if self.loop is None:
            self.loop = self._make(leaves_below(tensor))
        if self.loop is None or self._is_poisoned(self.loop):
            return
        if self.passes > self.loop.session.progress.step:
            self.loop.session.progress.step = self.passes
            self.loop.session.recorder.remember(self._losses)
        with torch.enable_grad():
            value = tensor if tensor.numel() == 1 else tensor.sum()
        micro = Micro(Loss(value, {}), values=[float(value.detach())])
        micro.evidence = examine(value, None)
        window = Window(time.perf_counter(), whole=True, micros=[micro])
        self.loop.detector.report_value(window, "the script has no optimizer: this value is only reported")

    def _is_poisoned(self, loop: ScriptLoop) -> bool:
        """Whether the script has written its own tensors with what came of the first bad value: reported once."""
        bad = loop.bad_state() if self.seen > 1 else []
        if bad and not self._poisoned:
            self._poisoned = True
            self._say(
                f"{some_of(bad)} {'is' if len(bad) == 1 else 'are'} not finite any more: the script made its update by "
                "hand after the value above; an optimizer's step would have been skipped"
            )
        return bool(bad)

    def bad_leaves(self) -> list[str]:
        """The tensors that the script updates by hand and that are not finite now, by its names or by shape."""
        leaves = [leaf for ref in self.leaves if (leaf := ref()) is not None]
        bad = [leaf for leaf in leaves if finite.any_nonfinite([leaf.detach()])]
        names = names_in_script()
        return [names.get(id(leaf), f"a tensor of shape {tuple(leaf.shape)}") for leaf in bad]

    def close(self) -> None:
        """Write the journal."""
        if self.loop is not None:
            self.loop.close()


def make_loose_loop(
    root: nn.Module, leaves: list[Tensor], settings: RunSettings, *, shared: Shared, run_dir: str | os.PathLike[str]
) -> ScriptLoop:
    """A guard over tensors that no optimizer owns, to diagnose their values; it never makes a step.

    Args:
        root: holds the tensors.
        leaves: the tensors, leaves of a graph.
        settings: of the run.
        shared: what the guard shares; the script has no other one.
        run_dir: where the journal and the incidents go.
    """
    return ScriptLoop(root, session_without_optimizer(root, leaves, settings, shared=shared, run_dir=run_dir), shared)


def session_without_optimizer(
    root: nn.Module, leaves: Sequence[Tensor], settings: RunSettings, *, shared: Shared, run_dir: str | os.PathLike[str]
) -> Session:
    """A session of tensors that no optimizer owns: its optimizer never makes a step.

    Args:
        root: holds the tensors.
        leaves: the tensors, leaves of a graph.
        settings: of the run.
        shared: what the guard shares.
        run_dir: where the journal and the incidents go.
    """
    never_steps = torch.optim.SGD(leaves, lr=0.0)
    for group in never_steps.param_groups:
        del group["lr"]  # there is no learning rate to report
    return Session(
        root,
        never_steps,
        Setup(
            policy=settings.policy(),
            run_dir=run_dir,
            quiet=settings.quiet,
            by="script",
            neighbours=ScriptNeighbours(shared.batches, shared.diagnosed, None),
            export=settings.exporters,
            alerts=settings.alerts(),
        ),
    )
