"""The buffers as they were before the step: a skipped batch has already changed BatchNorm's statistics in its forward.

Every tensor counts its in-place writes (`_version`), and a buffer that the forward pass replaces (`self.mean = 0.9 *
self.mean + ...`) is noticed by identity. But fused kernels write without counting: `native_batch_norm` changes the
running statistics and leaves their versions alone. So small buffers and those of normalisation layers are taken as
written in every step; only large ones (causal masks, position tables) are spared the copy while nobody wrote them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from nantrap import finite

_SMALL = 4096
"""Up to this many values a buffer is copied in each step rather than asked whether it was written."""


class BufferShadow:
    """Holds a copy of each buffer, and the version at which the copy was made."""

    def __init__(self, root: nn.Module) -> None:
        self._slots: list[tuple[dict[str, Tensor | None], str, str]] = []
        self._uncounted: list[bool] = []
        seen: set[tuple[int, str]] = set()
        for path, module in root.named_modules():
            for name in module._buffers:
                if (id(module._buffers), name) not in seen:
                    seen.add((id(module._buffers), name))
                    self._slots.append((module._buffers, name, f"{path}.{name}" if path else name))
                    buffer = module._buffers[name]
                    small = buffer is not None and buffer.numel() <= _SMALL
                    self._uncounted.append(small or isinstance(module, _NormBase))
        self._tensors: list[Tensor | None] = []
        self._versions: list[int] = []
        self._copies: list[Tensor | None] = []
        self._exempt: set[int] = set()
        self.adopt()

    def __bool__(self) -> bool:
        return bool(self._slots)

    def adopt(self) -> None:
        """Take the buffers as they are now for good: the user may write them between steps."""
        if not self._slots:
            return
        current = [holder.get(name) for holder, name, _ in self._slots]
        if not self._tensors:
            self._tensors = current
            self._copies = [None if t is None else t.detach().clone() for t in current]
            self._versions = [_version(t) for t in current]
            self._exempt = {i for i, t in enumerate(current) if t is not None and finite.any_nonfinite([t])}
            return
        self._copy(self._changed(current), current)

    def begin(self) -> None:
        """Before a forward pass: whatever was written since the last step was written by the user."""
        if self._slots:
            changed = self._changed([holder.get(name) for holder, name, _ in self._slots])
            if changed:
                self.adopt()

    def suspects(self) -> list[Tensor]:
        """The floating-point buffers that were written since the copy and were finite in it."""
        if not self._slots:
            return []
        current = [holder.get(name) for holder, name, _ in self._slots]
        return [tensor for i in self._changed(current) if i not in self._exempt and (tensor := current[i]) is not None]

    def names_of_bad(self) -> list[tuple[str, Tensor]]:
        """The buffers that became non-finite since the copy, by name. Reads the device: for after an alarm."""
        current = [holder.get(name) for holder, name, _ in self._slots]
        return [
            (self._slots[i][2], tensor)
            for i in self._changed(current)
            if i not in self._exempt and (tensor := current[i]) is not None and finite.any_nonfinite([tensor])
        ]

    def restore(self) -> None:
        """Put every buffer back as it was at the last `adopt`, object and contents."""
        for i in self._changed([holder.get(name) for holder, name, _ in self._slots]):
            holder, name, _ = self._slots[i]
            original, copy = self._tensors[i], self._copies[i]
            holder[name] = original
            if original is not None and copy is not None:
                with torch.no_grad():
                    original.copy_(copy)
                self._versions[i] = _version(original)

    def keep_where(self, bad: Tensor) -> None:
        """Without reading `bad` (1.0 or 0.0 on the device): restore where it is 1, adopt where it is 0."""
        current = [holder.get(name) for holder, name, _ in self._slots]
        for i in self._changed(current):
            original, copy, now = self._tensors[i], self._copies[i], current[i]
            if original is None or copy is None or now is None or now.shape != copy.shape:
                continue
            with torch.no_grad():
                now.copy_(torch.where(bad.to(now.device) > 0, copy, now))
        self._copy(self._changed(current), current)

    def _changed(self, current: list[Tensor | None]) -> list[int]:
        tensors, versions, uncounted = self._tensors, self._versions, self._uncounted
        return [
            i
            for i, tensor in enumerate(current)
            if uncounted[i] or tensor is not tensors[i] or (tensor is not None and tensor._version != versions[i])
        ]

    def _copy(self, changed: list[int], current: list[Tensor | None]) -> None:
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for i in changed:
            tensor, copy = current[i], self._copies[i]
            self._tensors[i] = tensor
            if tensor is None:
                self._copies[i], self._versions[i] = None, 0
                continue
            self._versions[i] = tensor._version
            if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype or copy.device != tensor.device:
                self._copies[i] = tensor.detach().clone()
            else:
                targets.append(copy)
                sources.append(tensor)
        if targets:
            with torch.no_grad():
                torch._foreach_copy_(targets, sources)


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor._version
