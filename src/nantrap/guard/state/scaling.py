"""A `GradScaler`, its scale, and how its normal search for a scale differs from a real failure.

A scaler begins with a scale of 65,536 and halves it at each overflow until gradients fit: the first skipped steps of
every fp16 run are normal. A forward pass that gives NaN looks the same to it; it then keeps halving the scale, down to
4.5e-44. The difference: the loss itself is finite while a scaler probes, and the scale stays above 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from nantrap.errors import UsageError
from nantrap.guard.policy import Policy
from nantrap.guard.torch_private import force_overflow, forget_unscaling, scale_of, scaler_tensors


class Scaling:
    """A scaler that may be absent or disabled. Holds the scale as last read, and the overflows in a row."""

    def __init__(self, scaler: Any, optimizer: Optimizer, policy: Policy) -> None:
        if scaler is not None and not all(hasattr(scaler, name) for name in ("scale", "unscale_", "step", "update")):
            raise UsageError(f"Guard(scaler=...): expected a torch.amp.GradScaler, got {type(scaler).__name__}")
        self.scaler = scaler
        """The scaler that was given, or `None`."""
        self.enabled = scaler is not None and bool(scaler.is_enabled())
        self.probes_in_a_row = 0
        self._optimizer = optimizer
        self._policy = policy
        self._value: float | None = None

    def use(self, scaler: Any) -> None:
        """The scaler of this step, where it is not known before: a script's own."""
        self.scaler = scaler
        self.enabled = scaler is not None and bool(scaler.is_enabled())
        self._value = None

    def is_probing(self) -> bool:
        """Whether an overflow with a finite loss is the scaler's normal search."""
        return self.enabled and self.probes_in_a_row < self._policy.skips.scaler_probes and (self.value() or 0.0) > 1.0

    def overflow(self) -> None:
        """Let the scaler treat this step as an overflow; the ranks agreed that it is one."""
        force_overflow(self.scaler, self._optimizer)
        self.probes_in_a_row += 1

    def forget(self) -> None:
        """This step never happened: the scaler keeps its scale, and may unscale again."""
        if self.enabled:
            forget_unscaling(self.scaler, self._optimizer)

    # ---- the scale itself, without a separate host read

    def scalar(self) -> Tensor | None:
        """The scale on the device, to be read together with the step's flag."""
        return scale_of(self.scaler) if self.enabled else None

    def note(self, value: float) -> None:
        """The scale as it was read for this step."""
        self._value = value

    def value(self) -> float | None:
        """The scale in force in this step, or `None` without a scaler."""
        if self.enabled and self._value is None:
            self._value = float(self.scaler.get_scale())
        return self._value

    def capture(self) -> Any:
        """What `restore` needs, copied on the device; `None` without a scaler."""
        if not self.enabled:
            return None
        tensors = scaler_tensors(self.scaler)
        if tensors is None:
            return self.scaler.state_dict()
        return {name: value.clone() for name, value in tensors.items()}

    def tensors(self) -> list[Tensor]:
        """The scale and its growth on the device, in the order of `capture`."""
        return list((scaler_tensors(self.scaler) or {}).values())

    def restore(self, captured: Any) -> None:
        """The scale and its growth as they were at `capture`."""
        if captured is None or self.scaler is None:
            return
        if "_scale" not in captured:
            self.scaler.load_state_dict(captured)
            return
        for name, value in captured.items():
            getattr(self.scaler, name).copy_(value)

    def would_leave_memory_uninitialised(self) -> bool:
        """Whether a step that the scaler skips would harm the next one.

        Fused SGD with momentum makes its buffers by `empty_like` and fills them in the kernel, which a found_inf skips:
        the next good step then starts from uninitialised memory. Without the call there is no buffer, and the next step
        makes a proper one.
        """
        if type(self._optimizer) is not SGD:
            return False
        state = self._optimizer.state
        return any(
            group.get("fused") and group["momentum"] and state.get(p, {}).get("momentum_buffer") is None
            for group in self._optimizer.param_groups
            for p in group["params"]
            if isinstance(p, torch.Tensor) and p.grad is not None
        )
