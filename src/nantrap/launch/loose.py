"""Scripts without an optimizer: a loss that is only looked at, or weights that are updated by hand.

There is no step to refuse. A value with a graph that the script asks about, or runs a backward pass from, is diagnosed
all the same when it is not finite: where it began and why, as an incident that is only reported.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from nantrap import finite
from nantrap.guard.loss import Loss
from nantrap.guard.window import Micro, Window
from nantrap.launch.activity import Activity
from nantrap.launch.loop import ScriptLoop
from nantrap.locate.autopsy import examine

_MOST_DIAGNOSED = 3


class LooseValues:
    """Diagnoses values that belong to no optimizer. Holds a loop over the tensors below the first bad one.

    Args:
        make: makes a loop over leaves of a graph; `None` if that is not possible.
        activity: whether a guard of the process is running.
    """

    def __init__(self, make: Callable[[list[Tensor]], ScriptLoop | None], activity: Activity) -> None:
        self.loop: ScriptLoop | None = None
        self.seen = 0
        """How many values were not finite."""
        self._make = make
        self._activity = activity
        self._last: weakref.ref[Tensor] | None = None

    def look(self, tensor: Tensor) -> None:
        """The script uses a value with a graph. If it is not finite, the first few are diagnosed, and all counted."""
        if tensor.grad_fn is None or (self._last is not None and self._last() is tensor):
            return
        self._activity.busy = True  # what is asked from here on is not asked by the script
        try:
            self._look(tensor)
        finally:
            self._activity.busy = False

    def _look(self, tensor: Tensor) -> None:
        if not finite.any_nonfinite([tensor.detach()]):
            return
        self._last = weakref.ref(tensor)
        self.seen += 1
        if self.seen > _MOST_DIAGNOSED:
            return
        if self.loop is None:
            self.loop = self._make(leaves_below(tensor))
        if self.loop is None:
            return
        with torch.enable_grad():
            value = tensor if tensor.numel() == 1 else tensor.sum()
        micro = Micro(Loss(value, {}), values=[float(value.detach())])
        micro.evidence = examine(value, None)
        window = Window(time.perf_counter(), whole=True, micros=[micro])
        self.loop.report_value(window, "the script has no optimizer: this value is only reported")

    def close(self) -> None:
        """Write the journal."""
        if self.loop is not None:
            self.loop.close()


def leaves_below(loss: Tensor) -> list[Tensor]:
    """The leaves in whose gradients a backward pass from here would end."""
    return leaves_of(nodes_below(loss))


def leaves_of(nodes: Iterable[Any]) -> list[Tensor]:
    """The leaves among the nodes of a graph."""
    found = (getattr(node, "variable", None) for node in nodes)
    return list({id(leaf): leaf for leaf in found if leaf is not None}.values())


def nodes_below(loss: Tensor) -> dict[Any, None]:
    """The nodes of the graph that a backward pass from here would visit, in the order of the graph."""
    waiting = [loss.grad_fn] if loss.grad_fn is not None else []
    seen = dict.fromkeys(waiting)
    while waiting:
        for below, _ in waiting.pop().next_functions:
            if below is not None and below not in seen:
                seen[below] = None
                waiting.append(below)
    return seen
