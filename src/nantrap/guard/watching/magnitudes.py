"""How large the outputs of the modules are, sampled in a few steps of a healthy run.

When a step fails, the report shows how large the suspect was over the last steps against its dtype's limit. Which
module will be the suspect is not known before, so in a sampled step hooks take the largest magnitude of each module's
output. It stays on the device and is read when a step fails, so a healthy run never waits for it.

Sampled are the 2nd, 3rd, 5th, 9th, 17th and 33rd step that this guard sees, and then every 64th; after a spike or an
incident, each of the next eight. Between samples it costs one comparison per step. A sample reads each output once,
which is a small part of a step that computes the outputs, their gradients and an update.

No hook is put on a compiled model, nor once anything was compiled since the guard was made. Tensors that are spread
over ranks are never read: that would be a message to the other ranks. A sample that fails ends the sampling, not the
run.

The trend of log2(limit / absmax) is a straight line when a run drifts towards overflow, so a line is fitted to the
samples: "overflows in about k steps" (`steps_left`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nantrap import finite
from nantrap.guard.torch_private import inside_transform, is_dispatch_mode_on
from nantrap.incident import Magnitudes
from nantrap.locate.failure import active_replays
from nantrap.locate.hooks import Hook
from nantrap.locate.replay.replay import compiled_frames

_KEPT = 16
_CLOSELY = 8
_MOST_TENSORS = 4
_COMPILING = frozenset({"xla", "lazy", "hpu", "meta"})  # there an operation more may mean another compilation


@dataclass(slots=True)
class _Sample:
    """The largest magnitudes of one step by module, with the dtypes of the outputs."""

    step: int
    peaks: dict[str, Tensor] = field(default_factory=dict)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)


class Sampler:
    """Samples magnitudes by module. Holds the last samples, and the hooks of a step that is sampled now.

    Args:
        root: the model.
        every: number of steps between samples, once the first ones are taken.
        warns: whether to sample regularly from the first step on and to say what is about to overflow.
        compiled: the model is compiled.
    """

    def __init__(self, root: nn.Module, *, every: int, warns: bool = False, compiled: bool = False) -> None:
        self._root = root
        self._every = every
        self._warns = warns
        self._frames = compiled_frames()
        self._first: int | None = None
        self._closely_until = -1
        self._names: dict[int, str] = {}
        self._samples: deque[_Sample] = deque(maxlen=_KEPT)
        self._sample: _Sample | None = None
        self._last: tuple[Tensor, Tensor] | None = None
        self._handles: list[Any] = []
        self._warned: set[str] = set()
        self.due: float = math.inf if compiled or not every else 0
        """From which step on the next sample is taken."""
        self.running = False
        """Whether the step that runs now is sampled; an attribute, because every step asks."""

    def begin(self, step: int) -> None:
        """Before the forward pass of a step in which a sample is due: put the hooks on."""
        if self._sample is not None:  # of a step that did not run to its end
            self._take_off()
        if compiled_frames() != self._frames:  # the script compiles: hooks must not become part of a graph
            self.due = math.inf
            return
        if self._first is None:
            self._first = step
            if not self._warns:  # the first step is the one in which a model is compiled
                self.due = step + 1
                return
        self.due = step + 1 if step < self._closely_until else self._next(step)
        self._sample, self.running = _Sample(step), True
        hook = Hook(self._observe)
        self._names = {}
        try:
            for name, module in self._root.named_modules():
                if not isinstance(module, torch.jit.ScriptModule):  # takes no hook
                    self._names[id(module)] = name
                    self._handles.append(module.register_forward_hook(hook))
        except Exception:  # a class of modules of its own kind
            self._take_off()
            self.due = math.inf

    def end(self) -> list[str]:
        """After the step: take the hooks off, keep the sample. Returns what is about to overflow, in words."""
        sample = self._take_off()
        if sample is None or not sample.peaks:
            return []
        self._samples.append(sample)
        return list(self._warnings(sample)) if self._warns else []

    def watch_closely(self, step: int) -> None:
        """Something unusual happened in this step: each of the next ones is sampled."""
        if self.due < math.inf:
            self._closely_until, self.due = step + _CLOSELY, min(self.due, step + 1)

    def of(self, module: str | None, phase: str) -> Magnitudes | None:
        """How large the suspect was in the samples: the module's output, else that of the module around it."""
        if phase in ("data", "optimizer") or module is None or not self._samples:
            return None
        name = "" if module == "loss" else module
        while name and not any(name in sample.peaks for sample in self._samples):
            name = name.rpartition(".")[0]
        found = self._read(name)
        if not found:
            return None
        dtype = next(sample.dtypes[name] for sample in reversed(self._samples) if name in sample.peaks)
        of = f"the output of {name}" if name else "the model's output"
        return Magnitudes(of, finite.dtype_name(dtype), "sampled", {str(step): number for step, number in found})

    def trend(self, module: str) -> tuple[tuple[int, float], ...]:
        """The samples of one module: step and bits of headroom."""
        return tuple(
            (step, finite.headroom_bits(number, self._dtype(module)) or 0.0)
            for step, number in self._read(module)
            if number > 0
        )

    # ---- parts

    def _next(self, step: int) -> int:
        since = step - (self._first or 0)
        return step + (self._every if self._warns else min(max(since, 1), self._every))

    def _take_off(self) -> _Sample | None:
        sample, self._sample, self._last, self.running = self._sample, None, None, False
        for handle in self._handles:
            handle.remove()
        self._handles = []
        return sample

    def _observe(self, module: nn.Module, args: Any, output: Any) -> None:
        """The largest magnitude of one module's output. Nothing of it may reach the run: neither values nor errors."""
        sample = self._sample
        if sample is None or active_replays or not torch.is_grad_enabled():
            return
        if inside_transform() is not None or is_dispatch_mode_on():
            return
        try:
            for tensor in _tensors(output):
                self._note(sample, self._names.get(id(module), ""), tensor)
            if module is self._root:
                self._last = None  # nothing of the step is kept longer than without a sample
        except Exception:  # a tensor class that cannot do this
            self.due, self._sample = math.inf, None

    def _note(self, sample: _Sample, name: str, tensor: Tensor) -> None:
        """Keep the largest magnitude that a module's output had in this sample of the run."""
        if self._last is not None and self._last[0] is tensor:  # the output of its last part
            peak = self._last[1]
        else:
            with torch.no_grad():
                low, high = torch.aminmax(tensor.detach())  # 25 times as fast as a norm on a CPU, and no copy
                peak = torch.maximum(high, -low)
            self._last = tensor, peak
        before = sample.peaks.get(name)
        if before is None:
            sample.peaks[name], sample.dtypes[name] = peak, tensor.dtype
        elif (before.dtype, before.device) == (peak.dtype, peak.device):  # called several times: its largest
            sample.peaks[name] = torch.maximum(before, peak)

    def _read(self, name: str) -> list[tuple[int, float]]:
        """The finite magnitudes of one module by step, in one transfer."""
        samples = [sample for sample in self._samples if name in sample.peaks]
        if not samples:
            return []
        values = finite.read([sample.peaks[name] for sample in samples])
        return [(s.step, value) for s, value in zip(samples, values, strict=True) if math.isfinite(value)]

    def _dtype(self, name: str) -> torch.dtype:
        return next(sample.dtypes[name] for sample in reversed(self._samples) if name in sample.dtypes)

    def _warnings(self, sample: _Sample) -> Iterator[str]:
        for name in sample.peaks:
            if name and name not in self._warned and (words := steps_left_in_words(name, self.trend(name))):
                self._warned.add(name)
                yield f"step {sample.step:,}: {words}"


def _tensors(output: Any) -> Iterator[Tensor]:
    """The plain floating-point tensors of a module's output, the first few."""
    if type(output) is Tensor:
        found: list[Any] = [output]
    elif isinstance(output, Mapping):
        found = list(output.values())[:_MOST_TENSORS]
    else:
        found = list(output[:_MOST_TENSORS]) if isinstance(output, (tuple, list)) else []
    for tensor in found:
        if (
            type(tensor) is Tensor
            and tensor.is_floating_point()
            and tensor.layout == torch.strided
            and tensor.numel()
            and tensor.device.type not in _COMPILING
        ):
            yield tensor


_SAMPLES = 8
_FEWEST = 4
_WARN_WITHIN = 500
_WARN_BELOW_BITS = 24


def steps_left(samples: Sequence[tuple[int, float]]) -> float | None:
    """In how many steps a module overflows at this pace; `None` without a clear trend.

    Args:
        samples: step and bits of headroom, oldest first.
    """
    samples = samples[-_SAMPLES:]
    if len(samples) < _FEWEST:
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


def steps_left_in_words(name: str, samples: Sequence[tuple[int, float]]) -> str:
    """The warning about one module; empty if there is nothing to warn of."""
    left = steps_left(samples)
    if left is None or left > _WARN_WITHIN or samples[-1][1] > _WARN_BELOW_BITS:
        return ""
    bits = f"{samples[-1][1]:.1f} bits of headroom left"
    return f"module {name} has {bits} and overflows in about {left:.0f} steps at this pace"
