"""The driver of a script's own loop: the script's call is made or left out, and nothing else is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from nantrap import finite
from nantrap.guard.protected import Protected
from nantrap.guard.scaling import Scaling
from nantrap.guard.torch_private import has_pre_hooks


class ScriptDriver:
    """Holds the script's call of this step, what it gave, and the norm that the script's own clipping found."""

    owns_gradients = False

    def __init__(self, protected: Protected, scaling: Scaling, *, max_grad_norm: float | None = None) -> None:
        self.scaling = scaling
        self.max_grad_norm = max_grad_norm
        """What nantrap itself clips to (`--clip`), whatever the script does."""
        self.result: Any = None
        """What the script's call gave; `None` if it was not made."""
        self._members = protected.members
        self._optimizer = protected.optimizer
        self._run: Callable[[], Any] | None = None
        self._norm: Tensor | None = None
        self._own_norm: Tensor | None = None
        self._still_scaled = False

    def prepare(self, run: Callable[[], Any], *, scaler: Any, still_scaled: bool) -> None:
        """The call of this step, and the scaler through which it comes."""
        self._run = run
        self.result = None
        self._still_scaled = still_scaled
        if scaler is not None or self.scaling.scaler is not None:
            self.scaling.use(scaler)

    def note_norm(self, norm: Tensor) -> None:
        """The script clipped, and this was the norm before."""
        self._norm = norm

    def forget_norm(self) -> None:
        """The gradients have changed since."""
        self._norm = None

    def norm(self) -> Tensor:
        """The norm that the script has found already, or the one of the gradients as they are."""
        norm = finite.gradient_norm(self._members.gradients()) if self._norm is None else finite.whole_norm(self._norm)
        scale = self.scaling.scalar() if self._still_scaled else None
        norm = norm if scale is None else norm / scale.to(norm.device)
        if self.max_grad_norm is not None:
            self._own_norm = norm
        return norm

    def norm_is_used(self) -> bool:
        """The script clipped by it, or `--clip` does, or a hook of the optimizer may."""
        return self._norm is not None or self.max_grad_norm is not None or has_pre_hooks(self._optimizer)

    def clip(self, norm: float) -> None:
        """As `clip_grad_norm_` does; the script may have clipped before, and then the norm is taken again."""
        limit = self.max_grad_norm
        if limit is None or norm + 1e-6 < limit * (1 - 1e-6) or self._own_norm is None:
            return
        total = self._own_norm if self._norm is None else finite.gradient_norm(self._members.gradients())
        finite.clip_with_norm(self._members.parameters, max_norm=limit, total=total)

    def take_update(self) -> None:
        """The script's own call."""
        assert self._run is not None
        self.result = self._run()

    def probe(self) -> None:
        """The scaler sees the overflow itself and skips."""
        self.scaling.overflow()
        if not self.scaling.would_leave_memory_uninitialised():
            self.take_update()

    def repeat_update(self) -> None:
        """The scaler's own step is done already: only the optimizer's."""
        if self.scaling.enabled:
            self._optimizer.step()
        else:
            self.take_update()

    def refuse_update(self) -> None:
        """Every gradient to 0, in place: the script may still look at them, and clears them itself."""
        self._members.zero_gradients()
        self.scaling.forget()

    def advance(self, *, applied: bool) -> None:
        """The script updates its scaler and steps its schedule itself."""
        if applied:
            self.scaling.probes_in_a_row = 0

    def advance_schedule(self) -> None:
        """The script steps its schedule itself."""
