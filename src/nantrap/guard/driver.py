"""What makes the update of a step. The step engine passes a decision to its `Driver` and changes nothing itself.

There are three kinds: the guard's own loop (`OwnLoop`, here), a script under `nantrap run` (in `launch`), and the
adapters of frameworks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from nantrap import finite
from nantrap.checkpoints.torch_private import mark_stepped
from nantrap.guard.state.protected import Protected
from nantrap.guard.state.scaling import Scaling
from nantrap.guard.torch_private import has_pre_hooks


class Driver(Protocol):
    """Makes the update, or does not."""

    owns_gradients: bool
    """Whether gradients are the guard's: cleared before and after a step, and filled by its own backward only."""

    advances: bool
    """Whether `advance` has anything to do."""

    max_grad_norm: float | None
    """To what norm `clip` clips; `None` if it does not."""

    scaling: Scaling
    """The loss scale of the step."""

    still_scaled: bool
    """The gradients still carry the loss scale; a fused optimizer divides them itself."""

    known: Tensor | None
    """The norm of this step, where it was taken already."""

    @property
    def limit(self) -> float | None:
        """The largest norm that the gradients can have after clipping; `None` without clipping."""

    def norm(self) -> Tensor:
        """The total norm of the gradients as they are, unscaled, before `clip`. Stays on the device."""

    def norm_is_used(self) -> bool:
        """Whether anything clips by the norm: then one that overflows would zero the update."""

    def clip(self, norm: float) -> None:
        """Clip the gradients, whose norm is known by now."""

    def clip_unread(self, norm: Tensor) -> None:
        """Clips to a norm that stays on the device."""

    @property
    def take_update(self) -> Callable[[], Any]:
        """The optimizer's step, through the scaler if there is one."""

    def probe(self) -> None:
        """Calls the scaler in a step whose gradients overflow while it searches its scale: it skips this step."""

    def repeat_update(self) -> Any:
        """Make an update again that was undone to examine it."""

    def refuse_update(self, *, overflow: bool = False) -> None:
        """This step is not made: no gradient is left that could move anything.

        Args:
            overflow: a script's own scaler takes it for an overflow, and lowers its scale; else it keeps the scale.
        """

    def advance(self, *, applied: bool) -> None:
        """After the update, or after a step that a scaler left out: scaler, schedule, averages, gradients."""

    def advance_schedule(self) -> None:
        """The schedule moves although the step was refused (`Skips.scheduler`)."""


class OwnLoop:
    """The driver of the guard's own forms: it clips, steps, advances the schedule and clears gradients."""

    owns_gradients = True
    advances = True
    still_scaled = False

    def __init__(
        self,
        protected: Protected,
        *,
        scaling: Scaling,
        scheduler: Any = None,
        average: Callable[[], Any] | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        self.scaling = scaling
        self.max_grad_norm = max_grad_norm
        self._members = protected.members
        self._optimizer = protected.optimizer
        self._scheduler = scheduler
        self._average = average
        self._norm: Tensor | None = None
        self.known: Tensor | None = None
        """The norm of this step, where it was taken already."""

    def norm(self) -> Tensor:
        """The norm of all gradients, which is also the flag of the step."""
        if self.known is not None:
            self._norm, self.known = self.known, None
            return self._norm
        if self.scaling.enabled:
            self.scaling.scaler.unscale_(self._optimizer)
        gradients = [gradient for parameter in self._members.parameters if (gradient := parameter.grad) is not None]
        if self.max_grad_norm is None and not self.norm_is_used():
            return finite.flag_norm(gradients)
        self._norm = norm = finite.gradient_norm(gradients)
        return norm

    @property
    def limit(self) -> float | None:
        """What the guard clips to."""
        return self.max_grad_norm

    def norm_is_used(self) -> bool:
        """The guard clips by it, or a hook of the optimizer may."""
        return self.max_grad_norm is not None or has_pre_hooks(self._optimizer)

    def clip(self, norm: float) -> None:
        """Clips as `clip_grad_norm_` does, bit for bit."""
        if self.max_grad_norm is None or norm + 1e-6 < self.max_grad_norm * (1 - 1e-6):
            return  # the clamped coefficient is 1.0, and x * 1.0 is x
        if self._norm is None:
            return
        finite.clip_with_norm(self._members.parameters, max_norm=self.max_grad_norm, total=self._norm)

    def clip_unread(self, norm: Tensor) -> None:
        """Clips by a norm that stays on the device."""
        if self.max_grad_norm is not None:
            finite.clip_with_norm(self._members.parameters, max_norm=self.max_grad_norm, total=norm)

    def take_update(self) -> Any:
        """The optimizer's step."""
        if self.scaling.enabled:
            return self.scaling.scaler.step(self._optimizer)
        return self._optimizer.step()

    def probe(self) -> None:
        """What the scaler does without us: it leaves the weights alone, and lowers its scale in `advance`."""
        self.scaling.overflow()
        if not self.scaling.would_leave_memory_uninitialised():
            self.scaling.scaler.step(self._optimizer)

    def repeat_update(self) -> Any:
        """The scaler's own step is done already: only the optimizer's."""
        return self._optimizer.step()

    def refuse_update(self, *, overflow: bool = False) -> None:
        """Every gradient to `None`: the only value with which no optimizer moves anything."""
        self._norm = None
        self._members.clear_gradients()
        self.scaling.forget()

    def advance(self, *, applied: bool) -> None:
        """Scaler, schedule and averages, and the next step begins without gradients."""
        if self.scaling.enabled:
            self.scaling.scaler.update()
        if not applied:
            self.advance_schedule()
        elif self._scheduler is not None:
            self._scheduler.step()
        if applied and self._average is not None:
            self._average()
        self._norm = None
        for parameter in self._members.parameters:
            parameter.grad = None

    def advance_schedule(self) -> None:
        """The schedule alone."""
        if self._scheduler is not None:
            mark_stepped(self._optimizer)
            self._scheduler.step()
