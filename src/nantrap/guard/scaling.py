"""GradScaler in the right order, and its normal probing told from a real failure.

A scaler begins with a scale of 65,536 and halves it at each overflow until gradients fit: the first skipped steps of
every fp16 run are normal. A forward pass that gives NaN looks the same to it; it then halves the scale for ever, down
to 4.5e-44. The difference: the loss itself is finite while a scaler probes, and the scale stays above 1.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from nantrap.errors import UsageError
from nantrap.guard.policy import Policy


class Scaling:
    """Wraps a scaler that may be absent or disabled. Counts the overflows in a row."""

    def __init__(self, scaler: Any, optimizer: Optimizer, policy: Policy) -> None:
        if scaler is not None and not all(hasattr(scaler, name) for name in ("scale", "unscale_", "step", "update")):
            raise UsageError(f"Guard(scaler=...): expected a torch.amp.GradScaler, got {type(scaler).__name__}")
        self._scaler = scaler
        self._optimizer = optimizer
        self._policy = policy
        self.enabled = scaler is not None and bool(scaler.is_enabled())
        self.probes_in_a_row = 0
        if self.enabled and policy.sync == "late":
            raise UsageError(
                'Policy(sync="late") and a GradScaler: the scaler reads its flag on the host in each step anyway; '
                'use sync="step"'
            )

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale."""
        return self._scaler.scale(loss) if self.enabled else loss  # type: ignore[no-any-return]

    def unscale(self) -> None:
        """Divide the gradients by the scale, once, before they are looked at or clipped."""
        if self.enabled:
            self._scaler.unscale_(self._optimizer)

    def step(self) -> None:
        """The optimizer's step, through the scaler if there is one."""
        if self.enabled:
            self._scaler.step(self._optimizer)
        else:
            self._optimizer.step()

    def update(self) -> None:
        """After a step that was taken or probed."""
        if self.enabled:
            before = self._scaler.get_scale()
            self._scaler.update()
            self.probes_in_a_row = self.probes_in_a_row + 1 if self._scaler.get_scale() < before else 0

    def forget(self) -> None:
        """This step never happened: the scaler keeps its scale, and may unscale again."""
        if self.enabled:
            self._scaler._per_optimizer_states.pop(id(self._optimizer), None)

    def is_probing(self) -> bool:
        """Whether an overflow with a finite loss is the scaler's normal search."""
        return (
            self.enabled
            and self.probes_in_a_row < self._policy.max_scaler_probes
            and float(self._scaler.get_scale()) > 1.0
        )

    def scale_value(self) -> float | None:
        """The scale in force, or `None` without a scaler."""
        return float(self._scaler.get_scale()) if self.enabled else None
