"""Early warning: how near each module's output is to its dtype's limit, sampled at intervals, and when it will
overflow.

Off by default. Every `Policy.headroom_every` steps one forward pass is watched by hooks: the largest magnitude of each
leaf module's output, kept on the device and read with the others in one transfer. Between samples it costs one
comparison per step. The trend of log2(limit / absmax) is a straight line when a run drifts towards overflow, so a line
is fitted to the last samples: "overflows in about k steps".
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

from nantrap import finite

_SAMPLES = 8
_WARN_WITHIN = 500
_WARN_BELOW_BITS = 24


class Headroom:
    """Samples headroom by module. Holds the last samples of each module as (step, bits)."""

    def __init__(self, root: nn.Module, *, every: int) -> None:
        self._every = every
        self._leaves = [(name or "loss", m) for name, m in root.named_modules() if not any(m.children())]
        self._samples: dict[str, deque[tuple[int, float]]] = {}
        self._peaks: dict[str, tuple[Tensor, float]] = {}
        self._hooks: list[Any] = []
        self._warned: set[str] = set()

    def begin(self, step: int) -> None:
        """Before a forward pass: put the hooks on when a sample is due."""
        if not self._every or step % self._every or self._hooks:
            return
        for name, module in self._leaves:
            self._hooks.append(module.register_forward_hook(self._observer(name)))

    def end(self, step: int, *, applied: bool) -> list[str]:
        """After the step: take the hooks off, read the sample, and say what is about to overflow."""
        if not self._hooks:
            return []
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        peaks, self._peaks = self._peaks, {}
        if not applied or not peaks:
            return []
        values = finite.read([peak for peak, _ in peaks.values()])
        for (name, (_, limit)), value in zip(peaks.items(), values, strict=True):
            if math.isfinite(value) and value > 0:
                bits = math.log2(limit) - math.log2(value)
                self._samples.setdefault(name, deque(maxlen=_SAMPLES)).append((step, bits))
        return [message for name in peaks if (message := self._warning(name))]

    def trend(self, module: str) -> tuple[tuple[int, float], ...]:
        """The samples of one module: step and bits of headroom."""
        return tuple(self._samples.get(module, ()))

    def steps_left(self, module: str) -> float | None:
        """In how many steps the module overflows at this pace; `None` without a clear trend."""
        samples = self.trend(module)
        if len(samples) < 4:
            return None
        steps, bits = [step for step, _ in samples], [value for _, value in samples]
        mean_step, mean_bits = sum(steps) / len(steps), sum(bits) / len(bits)
        spread = sum((s - mean_step) ** 2 for s in steps)
        slope = sum((s - mean_step) * (b - mean_bits) for s, b in samples) / spread
        error = sum((b - mean_bits - slope * (s - mean_step)) ** 2 for s, b in samples)
        explained = slope**2 * spread
        if slope >= -1e-4 or explained < 4 * error:  # level, rising, or noise
            return None
        return max(0.0, bits[-1] / -slope)

    def _warning(self, name: str) -> str:
        left = self.steps_left(name)
        bits = self._samples[name][-1][1] if name in self._samples else math.inf
        if left is None or left > _WARN_WITHIN or bits > _WARN_BELOW_BITS or name in self._warned:
            return ""
        self._warned.add(name)
        return f"{name} has {bits:.1f} bits of headroom left and overflows in about {left:.0f} steps at this pace"

    def _observer(self, name: str) -> Any:
        """A hook that keeps the largest magnitude of one module's output, on the device."""

        def observe(module: nn.Module, args: Any, output: Any) -> None:
            """Keep the largest output of the module, and the limit of its dtype."""
            tensor = output[0] if isinstance(output, (tuple, list)) and output else output
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel():
                with torch.no_grad():
                    peak = tensor.detach().abs().amax().float()
                before = self._peaks.get(name)
                if before is not None:  # a module called several times: its largest
                    peak = torch.maximum(before[0], peak)
                self._peaks[name] = (peak, finite.limit_of(tensor.dtype))

        return observe
