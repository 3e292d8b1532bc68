"""Schedules and averages: a step that was refused does not advance the schedule, and is not averaged.

Only a schedule that moves with every step is held. One that moves once per epoch continues, whether or not the last
batch was skipped.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau, SequentialLR
from torch.optim.swa_utils import AveragedModel

from nantrap.launch.loops import Loops
from nantrap.launch.patches import Patches
from nantrap.launch.roots import innermost
from nantrap.locate import unwrap


def install(patches: Patches, loops: Loops) -> None:
    """Hold schedules and averages after a refused step."""
    moved: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    inside: list[bool] = []

    def step(original: Any, self: LRScheduler, *args: Any, **kwargs: Any) -> None:
        """Steps the schedule, except after a refused step of a schedule that moves with every step."""
        optimizer = innermost(getattr(self, "optimizer", None))
        entry = loops.entry(optimizer) if isinstance(optimizer, Optimizer) else None
        loop = entry.loop if entry is not None else None
        if loop is None or inside:
            original(self, *args, **kwargs)
            return
        now = loop.tally.attempted
        every_step = now - moved.get(self, 0) <= 1
        moved[self] = now
        if loop.refused and every_step and loop.policy.scheduler_on_skip == "hold":
            return
        inside.append(True)
        try:
            original(self, *args, **kwargs)
        finally:
            inside.pop()

    def made(original: Any, self: LRScheduler, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        patches.wrap_all(LRScheduler, "step", step)
        optimizer = innermost(getattr(self, "optimizer", None))
        entry = loops.entry(optimizer) if isinstance(optimizer, Optimizer) else None
        if entry is not None:
            entry.schedulers.append(weakref.ref(self))

    def averaged(original: Any, self: AveragedModel, model: Any) -> None:
        source = unwrap(model)
        if not any(loop.refused and loop.parts.protected.root is source for loop in loops):
            original(self, model)

    for cls in (LRScheduler, SequentialLR, ChainedScheduler, ReduceLROnPlateau):  # the others do not call LRScheduler's
        patches.wrap(cls, "__init__", made)
    patches.wrap_all(LRScheduler, "step", step)
    patches.wrap(AveragedModel, "update_parameters", averaged)
