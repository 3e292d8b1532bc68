"""The driver of a script's own loop: the script's call is made, or it is not, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from nantrap import finite
from nantrap.guard.protected import Protected
from nantrap.guard.scaling import Scaling
from nantrap.guard.torch_private import has_pre_hooks


class ScriptDriver:
    """The driver of a script's own loop: the script's call is made, or it is not, and nothing else is touched.

    Holds the script's call of this step, and the norm that the script's own clipping found.
    """

    owns_gradients = False
    advances = False

    def __init__(self, protected: Protected, scaling: Scaling, *, max_grad_norm: float | None = None) -> None:
        self.scaling = scaling
        self.max_grad_norm = max_grad_norm
        """What nantrap itself clips to (`--clip`), whatever the script does."""
        self._own_norm: Tensor | None = None
        self.take_update: Callable[[], Any] = lambda: None
        """The script's own call in this step."""
        self.clipped_norm: Tensor | None = None
        """The norm before the script clipped; `None` if it did not, or if the gradients have changed since."""
        self.still_scaled = False
        """The gradients still carry the loss scale; a fused optimizer divides them itself."""
        self._protected = protected

    def norm(self) -> Tensor:
        """The norm that the script has found already, or the one of the gradients as they are."""
        norm = self.clipped_norm
        if norm is None:
            gradients = self._protected.members.gradients()
            norm = finite.gradient_norm(gradients) if self.norm_is_used() else finite.flag_norm(gradients)
        elif norm.__class__ is not Tensor:
            norm = finite.whole_norm(norm)
        scale = self.scaling.scalar() if self.still_scaled else None
        norm = norm if scale is None else norm / scale.to(norm.device)
        if self.max_grad_norm is not None:
            self._own_norm = norm
        return norm

    def norm_is_used(self) -> bool:
        """The script clipped by it, or `--clip` does, or a hook of the optimizer may."""
        own = self.clipped_norm is not None or self.max_grad_norm is not None
        return own or has_pre_hooks(self._protected.optimizer)

    def clip(self, norm: float) -> None:
        """As `clip_grad_norm_` does; the script may have clipped before, and then the norm is taken again."""
        limit = self.max_grad_norm
        if limit is None or norm + 1e-6 < limit * (1 - 1e-6) or self._own_norm is None:
            return
        members = self._protected.members
        total = self._own_norm if self.clipped_norm is None else finite.gradient_norm(members.gradients())
        finite.clip_with_norm(members.parameters, max_norm=limit, total=total)

    def probe(self) -> None:
        """The scaler sees the overflow itself and skips."""
        self.scaling.overflow()
        if not self.scaling.would_leave_memory_uninitialised():
            self._protected.result = self.take_update()

    def repeat_update(self) -> Any:
        """The scaler's own step is behind us: the optimizer's alone."""
        return self._protected.optimizer.step() if self.scaling.enabled else self.take_update()

    def refuse_update(self) -> None:
        """Every gradient to 0, in place: the script may still look at them, and clears them itself."""
        self._protected.members.zero_gradients()
        self.scaling.forget()

    def advance(self, *, applied: bool) -> None:
        """The script updates its scaler and steps its schedule itself."""

    def advance_schedule(self) -> None:
        """The script steps its schedule itself."""
