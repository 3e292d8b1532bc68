"""GradScaler in the right order, and its normal probing told from a real failure.

A scaler begins with a scale of 65,536 and halves it at each overflow until gradients fit: the first skipped steps of
every fp16 run are normal. A forward pass that gives NaN looks the same to it; it then halves the scale for ever, down
to 4.5e-44. The difference: the loss itself is finite while a scaler probes, and the scale stays above 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from nantrap.errors import UsageError
from nantrap.guard.policy import Policy


class Scaling:
    """Wraps a scaler that may be absent or disabled. Holds the scale as last read, and the overflows in a row."""

    def __init__(self, scaler: Any, optimizer: Optimizer, policy: Policy) -> None:
        if scaler is not None and not all(hasattr(scaler, name) for name in ("scale", "unscale_", "step", "update")):
            raise UsageError(f"Guard(scaler=...): expected a torch.amp.GradScaler, got {type(scaler).__name__}")
        self._scaler = scaler
        self._optimizer = optimizer
        self._policy = policy
        self.enabled = scaler is not None and bool(scaler.is_enabled())
        self.probes_in_a_row = 0
        self._value: float | None = None
        if self.enabled and policy.sync == "late":
            raise UsageError(
                'Policy(sync="late") and a GradScaler: the scaler reads its flag on the host in each step anyway; '
                'use sync="step"'
            )

    @property
    def scaler(self) -> Any:
        """The scaler that was given, or `None`."""
        return self._scaler

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale."""
        if not self.enabled:
            return loss
        scaled: Tensor = self._scaler.scale(loss)
        return scaled

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
        """After a step that was taken."""
        if self.enabled:
            self._scaler.update()
            self.probes_in_a_row = 0

    def probe(self) -> None:
        """After an overflow: what the scaler does without us, lower its scale and leave the weights alone."""
        if not self._would_leave_memory_uninitialised():
            self._scaler.step(self._optimizer)
        self._scaler.update()
        self.probes_in_a_row += 1

    def forget(self) -> None:
        """This step never happened: the scaler keeps its scale, and may unscale again."""
        if self.enabled:
            self._scaler._per_optimizer_states.pop(id(self._optimizer), None)

    def is_probing(self) -> bool:
        """Whether an overflow with a finite loss is the scaler's normal search."""
        return self.enabled and self.probes_in_a_row < self._policy.max_scaler_probes and (self.value() or 0.0) > 1.0

    # ---- the scale itself, without a host read of its own

    def scalar(self) -> Tensor | None:
        """The scale on the device, to be read together with the step's flag."""
        scale = getattr(self._scaler, "_scale", None) if self.enabled else None
        return scale.detach().reshape(()) if isinstance(scale, Tensor) else None

    def note(self, value: float) -> None:
        """The scale as it was read for this step."""
        self._value = value

    def value(self) -> float | None:
        """The scale in force in this step, or `None` without a scaler."""
        if self.enabled and self._value is None:
            self._value = float(self._scaler.get_scale())
        return self._value

    def capture(self) -> Any:
        """What `restore` needs, copied on the device; `None` without a scaler."""
        if not self.enabled:
            return None
        kept = {name: getattr(self._scaler, name, None) for name in ("_scale", "_growth_tracker")}
        if all(isinstance(value, Tensor) for value in kept.values()):
            return {name: value.clone() for name, value in kept.items() if value is not None}
        return self._scaler.state_dict()

    def restore(self, captured: Any) -> None:
        """The scale and its growth as they were at `capture`."""
        if captured is None:
            return
        if "_scale" not in captured:
            self._scaler.load_state_dict(captured)
            return
        for name, value in captured.items():
            getattr(self._scaler, name).copy_(value)

    def _would_leave_memory_uninitialised(self) -> bool:
        # Fused SGD with momentum makes its buffers by `empty_like` and fills them in the kernel, which a found_inf
        # skips: the next good step then starts from whatever lay there. Without the call there is no buffer, and the
        # next step makes a proper one.
        if type(self._optimizer) is not SGD:
            return False
        state = self._optimizer.state
        return any(
            group.get("fused") and group["momentum"] and state.get(p, {}).get("momentum_buffer") is None
            for group in self._optimizer.param_groups
            for p in group["params"]
            if isinstance(p, torch.Tensor) and p.grad is not None
        )
