"""Parameters that take no gradient, such as a codebook: a forward pass may write them as it writes a buffer.

They are copied once, up to `_MOST_BYTES` in all. The sum of their versions tells whether any was written since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from nantrap.guard.torch_private import parameters_of, version, version_of

_MOST_BYTES = 64 * 2**20
"""They are copied beforehand up to this size in all, the small ones first."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """A parameter without a gradient, where it is held, and a copy of it."""

    holder: dict[str, Any]
    name: str
    path: str
    parameter: Tensor
    copy: Tensor
    version: int


class FrozenParameters:
    """The parameters without a gradient that are held ready, as long as nothing writes them.

    A step asks `any_written` only where `entries` is not empty: most models have none.
    """

    def __init__(self, entries: Sequence[Frozen] = ()) -> None:
        self._follow(entries)

    def any_written(self) -> bool:
        """Whether any of them was written since it was copied."""
        writes: int = sum(map(version_of, self._parameters))
        return writes != self._writes

    def release_written(self) -> list[Frozen]:
        """Those that were written since they were copied; they are not followed here any more."""
        written = [entry for entry in self.entries if version(entry.parameter) != entry.version]
        self._follow([entry for entry in self.entries if version(entry.parameter) == entry.version])
        return written

    def _follow(self, entries: Sequence[Frozen]) -> None:
        self.entries = entries
        self._parameters = [entry.parameter for entry in entries]
        self._writes = sum(entry.version for entry in entries)


def frozen_in(root: nn.Module) -> list[Frozen]:
    """The parameters without a gradient, the small ones first, up to `_MOST_BYTES` in all."""
    found: dict[int, tuple[dict[str, Any], str, str, nn.Parameter]] = {}
    for path, module in root.named_modules():
        holder = parameters_of(module)
        for name, parameter in holder.items():
            if parameter is None or parameter.requires_grad or isinstance(parameter, UninitializedParameter):
                continue
            if parameter.layout == torch.strided and not parameter.is_meta and not hasattr(parameter, "to_local"):
                found.setdefault(id(parameter), (holder, name, f"{path}.{name}" if path else name, parameter))
    entries, left = [], _MOST_BYTES
    for holder, name, path, parameter in sorted(found.values(), key=lambda entry: entry[3].nbytes):
        left -= parameter.nbytes
        if left < 0:
            break
        entries.append(Frozen(holder, name, path, parameter, parameter.detach().clone(), version(parameter)))
    return entries
