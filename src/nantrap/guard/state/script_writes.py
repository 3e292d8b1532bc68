"""Parameters without a gradient that the training script writes between steps: a teacher that follows the student.

Nothing but the script moves them, so no gradient and no update shows that such a write made one non-finite. They are
judged in the reading of the next step, which is then refused: its loss may have been computed with them. What the
script wrote stays, also in a refused step, as long as it is finite; non-finite values make way for the last finite
ones, after the diagnosis.

What was written before the first good step, or loaded, is the script's whatever it is. So is -Inf without NaN: a mask.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from nantrap import finite
from nantrap.guard.state.frozen import Frozen
from nantrap.guard.torch_private import copy_all, version, version_of


@dataclass(slots=True)
class _Written:
    """A parameter, its values after the last good step, and its version then."""

    path: str
    parameter: Tensor
    copy: Tensor
    version: int

    @property
    def since(self) -> bool:
        return version(self.parameter) != self.version


class ScriptWrites:
    """Holds the last good values of each such parameter. A step asks it only where `entries` is not empty."""

    def __init__(self) -> None:
        self.entries: list[_Written] = []
        self._parameters: list[Tensor] = []
        self._writes = 0
        self._bad: list[_Written] = []
        self._settled = False

    def follow(self, entries: Iterable[Frozen]) -> None:
        """The script wrote these for the first time; their copies are from before it."""
        fits = [e for e in entries if e.copy.is_floating_point() and not e.parameter.is_inference()]
        self._set([*self.entries, *(_Written(e.path, e.parameter, e.copy, e.version) for e in fits)])

    def begin(self) -> None:
        """A step begins. Until one was good, the script is still preparing its state."""
        self._bad = []
        if not self._settled:
            self.take_over()

    def settle(self) -> None:
        """A step was good: from here on the script's writes are judged."""
        self._settled = True
        self._bad = []
        self.take_over()

    def take_over(self) -> None:
        """What is there now is what a bad write will be undone to."""
        if self.entries and self._any_written():
            self._copy()

    def written(self) -> list[Tensor]:
        """Those that were written since the last good step, to be judged with this one."""
        return [entry.parameter for entry in self.entries if entry.since] if self._any_written() else []

    def find_bad(self) -> list[tuple[str, Tensor]]:
        """Those that became non-finite since the last good step, by name. Reads the device: for after an alarm.

        One that is not the script's alone is not followed from then on (see `_is_own`).
        """
        bad: list[_Written] = []
        left: list[_Written] = []
        for entry in self.entries:
            if entry.since and finite.any_nonfinite([entry.parameter]):
                if not _is_own(entry):
                    continue
                bad.append(entry)
            left.append(entry)
        if len(left) < len(self.entries):
            self._set(left)
        self._bad = bad
        return [(entry.path, entry.parameter) for entry in bad]

    def is_bad(self, tensor: Tensor) -> bool:
        """Whether `find_bad` named it in this step."""
        return any(entry.parameter is tensor for entry in self._bad)

    def put_back(self) -> list[str]:
        """Give those that `find_bad` named their last good values, unless they are finite by now. Returns names."""
        names = []
        for entry in self._bad:
            if finite.any_nonfinite([entry.parameter]) and entry.parameter.shape == entry.copy.shape:
                with torch.no_grad():
                    entry.parameter.copy_(entry.copy)
                entry.version = version(entry.parameter)
                names.append(entry.path)
        if names:
            self._set(self.entries)
        return names

    def _any_written(self) -> bool:
        writes: int = sum(map(version_of, self._parameters))
        return writes != self._writes

    def _copy(self) -> None:
        """Copy what was written since, in one call."""
        written = [entry for entry in self.entries if entry.since]
        for entry in written:
            if entry.copy.shape != entry.parameter.shape or entry.copy.dtype != entry.parameter.dtype:
                entry.copy = entry.parameter.detach().clone()
            entry.version = version(entry.parameter)
        if written:
            with torch.no_grad():
                copy_all([entry.copy for entry in written], [entry.parameter for entry in written])
        self._set(self.entries)

    def _set(self, entries: list[_Written]) -> None:
        self.entries = entries
        self._parameters = [entry.parameter for entry in entries]
        self._writes = sum(entry.version for entry in entries)


def _is_own(entry: _Written) -> bool:
    """Whether bad values are a fault of the script's writes: the parameter was finite, nothing else trains it, and they
    are no mask (-Inf, and neither NaN nor +Inf)."""
    values = entry.parameter.detach()
    if entry.parameter.requires_grad or entry.parameter.grad is not None or finite.any_nonfinite([entry.copy]):
        return False
    return bool((values.isnan() | values.isposinf()).any())
