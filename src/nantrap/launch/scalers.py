"""`GradScaler`: what it scales, when it steps, and that it keeps its scale when a step was refused."""

from __future__ import annotations

import functools
import weakref
from typing import Any

from torch import Tensor
from torch.amp import GradScaler

from nantrap.launch.loops import Loops
from nantrap.launch.patches import Patches
from nantrap.launch.resuming import look_at_resume
from nantrap.launch.roots import innermost
from nantrap.launch.torch_private import divides_by_scale, forget_step, has_seen_gradients, is_not_unscaled


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


def install(patches: Patches, loops: Loops, scaled: Scaled) -> None:
    """Report scaled losses and scaled steps to the guards."""

    def scale(original: Any, self: GradScaler, outputs: Any) -> Any:
        result = original(self, outputs)
        if isinstance(outputs, Tensor) and result is not outputs and not loops.is_own_call():
            scaled.note(result, outputs)
        return result

    def step(original: Any, self: GradScaler, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Passes `scaler.step(optimizer)` to the guard, with the gradients unscaled unless the optimizer divides them
        itself.
        """
        run = functools.partial(original, self, optimizer, *args, **kwargs)
        inner = innermost(optimizer)
        loop = None if not self.is_enabled() or loops.is_own_call() else loops.loop_of(inner)
        if loop is None:
            return run()
        look_at_resume(loops, inner)
        fused = divides_by_scale(optimizer)
        ready = is_not_unscaled(self, optimizer)
        if ready and not fused:
            self.unscale_(optimizer)  # scaler.step would do this first
        return loop.step(run, scaler=self, still_scaled=ready and fused)

    def update(original: Any, self: GradScaler, new_scale: Any = None) -> None:
        refused = any(loop.refused for loop in loops)
        if self.is_enabled() and new_scale is None and refused and not has_seen_gradients(self):
            forget_step(self)  # the step was not made, so the scale stays
            return
        original(self, new_scale)

    patches.wrap(GradScaler, "scale", scale)
    patches.wrap_all(GradScaler, "step", step)
    patches.wrap_all(GradScaler, "update", update)


def _is_single(tensors: Any) -> bool:
    return isinstance(tensors, (list, tuple)) and len(tensors) == 1
