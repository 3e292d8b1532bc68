"""Scripts without an optimizer: a loss that is only computed, or weights that are updated by hand.

There is no step to refuse. A value with a graph that the script asks about, or runs a backward pass from, is diagnosed
all the same when it is not finite: where it began and why, as an incident that is only reported.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from nantrap import finite
from nantrap.guard.loss import Loss
from nantrap.guard.session import Session, Setup
from nantrap.guard.window import Micro, Window
from nantrap.incident.wording import some_of
from nantrap.launch.position import ScriptNeighbours
from nantrap.launch.roots import names_in_script
from nantrap.launch.script_loop import ScriptLoop
from nantrap.launch.settings import RunSettings
from nantrap.launch.shared import Activity, Shared
from nantrap.locate.nodes import leaves_below
from nantrap.locate.twoline.autopsy import examine
from nantrap.record import StepRecord

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
