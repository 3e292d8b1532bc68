"""What goes along with an optimizer: its `GradScaler`, its schedule, and the average of its model.

After a step that was refused, the scaler keeps its scale, the schedule does not advance, and nothing is averaged. Only
a schedule that moves with every step is held. One that moves once per epoch continues, whether or not the last batch
was skipped.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau, SequentialLR
from torch.optim.swa_utils import AveragedModel

from nantrap.launch.checkpointing import look_at_resume
from nantrap.launch.patches import Patches
from nantrap.launch.registry import OptimizerRegistry
from nantrap.launch.roots import innermost
from nantrap.launch.torch_private import divides_by_scale, forget_step, has_seen_gradients, is_not_unscaled
from nantrap.locate import unwrap


class Scaled:
    """From a scaled loss back to the loss. Holds the last few, weakly."""

    def __init__(self) -> None:
        self.last: list[tuple[weakref.ref[Tensor], Tensor]] = []
        """The last scaled losses; empty in a script without a scaler."""

    def note(self, scaled: Tensor, loss: Tensor) -> None:
        """`scaled` is `loss` times a scale."""
        self.last = [(ref, each) for ref, each in self.last if ref() is not None][-3:]
        self.last.append((weakref.ref(scaled), loss))

    def unscaled(self, tensors: Any) -> Tensor | None:
        """The loss of a backward pass, without its scale; `None` if this is not a backward pass from one scalar."""
        tensor = tensors if isinstance(tensors, Tensor) else tensors[0] if _is_single(tensors) else None
        if not isinstance(tensor, Tensor) or tensor.numel() != 1 or not tensor.requires_grad:
            return None
        return next((loss for ref, loss in self.last if ref() is tensor), tensor)


def install(patches: Patches, registry: OptimizerRegistry, scaled: Scaled) -> None:
    """Follow scalers, schedules and averages."""
    _install_scalers(patches, registry, scaled)
    _install_schedules(patches, registry)


def _install_scalers(patches: Patches, registry: OptimizerRegistry, scaled: Scaled) -> None:
    """Report scaled losses and scaled steps to the guards."""

    def scale(original: Any, self: GradScaler, outputs: Any) -> Any:
        result = original(self, outputs)
        if isinstance(outputs, Tensor) and result is not outputs and not registry.is_own_call():
            scaled.note(result, outputs)
        return result

    def step(original: Any, self: GradScaler, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Passes `scaler.step(optimizer)` to the guard, with the gradients unscaled unless the optimizer divides them
        itself.
        """
        run = functools.partial(original, self, optimizer, *args, **kwargs)
        inner = innermost(optimizer)
        loop = None if not self.is_enabled() or registry.is_own_call() else registry.loop_of(inner)
        if loop is None:
            return run()
        look_at_resume(registry, inner)
        fused = divides_by_scale(optimizer)
        ready = is_not_unscaled(self, optimizer)
        if ready and not fused:
            self.unscale_(optimizer)  # scaler.step would do this first
        return loop.step(run, scaler=self, still_scaled=ready and fused)

    def update(original: Any, self: GradScaler, new_scale: Any = None) -> None:
        """`scaler.update()`: the scale stays after a refused step, and is restored after one that is found bad late."""
        refused = any(loop.refused for loop in registry)
        if self.is_enabled() and new_scale is None and refused and not has_seen_gradients(self):
            forget_step(self)  # the step was not made, so the scale stays
            return
        launched = registry.launched()
        if launched is not None and new_scale is None and launched.scales_by(self):
            launched.update_scale(functools.partial(original, self))
            return
        original(self, new_scale)

    patches.wrap(GradScaler, "scale", scale)
    patches.wrap_all(GradScaler, "step", step)
    patches.wrap_all(GradScaler, "update", update)


def _is_single(tensors: Any) -> bool:
    return isinstance(tensors, (list, tuple)) and len(tensors) == 1


def _install_schedules(patches: Patches, registry: OptimizerRegistry) -> None:
    """Hold schedules and averages after a refused step."""
    moved: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    inside: list[bool] = []

    def step(original: Any, self: LRScheduler, *args: Any, **kwargs: Any) -> None:
        """Steps the schedule, except after a refused step of a schedule that moves with every step."""
        optimizer = innermost(getattr(self, "optimizer", None))
        entry = registry.entry(optimizer) if isinstance(optimizer, Optimizer) else None
        loop = entry.loop if entry is not None else None
        if loop is None or inside:
            original(self, *args, **kwargs)
            return
        now = loop.tally.attempted
        every_step = now - moved.get(self, 0) <= 1
        moved[self] = now
        if loop.refused and every_step and loop.policy.skips.scheduler == "hold":
            return
        if every_step and loop.late is not None and loop.policy.skips.scheduler == "hold":
            loop.late.move_schedule(self)
        inside.append(True)
        try:
            original(self, *args, **kwargs)
        finally:
            inside.pop()

    def made(original: Any, self: LRScheduler, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        patches.wrap_all(LRScheduler, "step", step)
        optimizer = innermost(getattr(self, "optimizer", None))
        entry = registry.entry(optimizer) if isinstance(optimizer, Optimizer) else None
        if entry is not None:
            entry.schedulers.append(weakref.ref(self))

    def averaged(original: Any, self: AveragedModel, model: Any) -> None:
        """`average.update_parameters(model)`: not after a refused step, restored after one that is found bad late."""
        source = unwrap(model)
        loops = [loop for loop in registry if loop.session.protected.root is source]
        if any(loop.refused for loop in loops):
            return
        launched = registry.launched()
        if launched is not None and loops:
            launched.average(self, functools.partial(original, self, model))
        else:
            original(self, model)

    for cls in (LRScheduler, SequentialLR, ChainedScheduler, ReduceLROnPlateau):  # the others do not call LRScheduler's
        patches.wrap(cls, "__init__", made)
    patches.wrap_all(LRScheduler, "step", step)
    patches.wrap(AveragedModel, "update_parameters", averaged)
