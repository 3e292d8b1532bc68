"""The rows of the ledger: a tensor that a step may change apart from its update, a copy of it, and who writes it.

A row is written by a forward pass (a buffer), by nobody up to now (a parameter without a gradient), by the training
script between steps (a teacher that follows the student), or by the optimizer's update (every other parameter, which a
forward pass may write as well: a codebook that follows its inputs, a temperature that is clamped).

Every tensor counts its in-place writes (`_version`), and a buffer that the forward pass replaces (`self.mean = 0.9 *
self.mean + ...`) is noticed by identity. But fused kernels write without counting: `native_batch_norm` changes the
running statistics and leaves their versions alone. So small buffers and those of normalisation layers are taken as
written in every step; only large ones (causal masks, position tables) are not copied as long as nothing writes them.
A write through `tensor.data` is not counted either: what the model's code reaches that way (`data_writes`) is a
suspect, whose bits are compared.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from nantrap import finite
from nantrap.guard.torch_private import NormalisationLayer, buffers_of, parameters_of, version

_SMALL = 4096
"""Up to this many values a buffer is copied in each step, without a check whether it was written."""
_MOST_BYTES = 64 * 2**20
"""Parameters without a gradient are copied beforehand up to this size in all, the small ones first."""


class Writer(enum.Enum):
    """Who writes a tensor."""

    FORWARD = "a forward pass"
    NOBODY = "nobody up to now"
    SCRIPT = "the script, between steps"
    UPDATE = "the optimizer's update"


@dataclass(slots=True, eq=False)
class LedgerRow:
    """One tensor that a step may change.

    Attributes:
        name: its qualified name.
        writer: who writes it.
        tensor: the object at the time of the copy; `None` for a buffer that is not there yet.
        copy: its contents when the step began; `None` where nothing is copied.
        version: how often it had been written by then; -1 if it was written since the copy.
        holder: the module's own table in which it is held by `key`, if it is followed there and may be replaced.
        key: its name in that table.
        uncounted: it is written in ways that its version does not tell, and is taken as written in every step.
        suspect: it may be written so (through `tensor.data`): its bits are compared.
        exempt: it held infinities from the start, or is a mask: it is not judged.
        good: its contents after the last good step, where the script's writes are judged.
        good_version: how often it had been written by then.
    """

    name: str
    writer: Writer
    tensor: Tensor | None
    copy: Tensor | None = None
    version: int = 0
    holder: dict[str, Any] | None = None
    key: str = ""
    uncounted: bool = False
    suspect: bool = False
    exempt: bool = False
    good: Tensor | None = None
    good_version: int = 0

    @property
    def place(self) -> tuple[int, str]:
        """Where it is held: the table and its name there."""
        return id(self.holder), self.key

    def current(self) -> Tensor | None:
        """The tensor that is there now: a forward pass may have put another one into the table."""
        return self.tensor if self.holder is None else self.holder.get(self.key)

    def is_written(self) -> bool:
        """Whether it was written or replaced since the copy. Reads the device only for suspects."""
        tensor = self.current()
        if self.uncounted or tensor is not self.tensor or version(tensor) != self.version:
            return True
        if not self.suspect or tensor is None or self.copy is None:
            return False
        return is_plain(tensor) and bool(differs(tensor, self.copy))

    def is_new(self, tensor: Tensor) -> bool:
        """Whether this tensor was created since the copy: there was none before, or one of another shape."""
        return self.copy is None or self.copy.shape != tensor.shape


# ---- which tensors there are


def buffer_rows(
    prefix: str, root: nn.Module, known: Container[tuple[int, str]] = (), earlier: Mapping[str, Tensor] | None = None
) -> list[LedgerRow]:
    """The buffers of a module, copied.

    Args:
        prefix: the name of the module; empty for the model itself.
        root: the module.
        known: the places (table, key) that have a row already.
        earlier: copies from the beginning of the step, by name, if the module was called already.
    """
    rows: dict[tuple[int, str], LedgerRow] = {}
    for path, module in root.named_modules(prefix=prefix):
        holder = buffers_of(module)
        for key, buffer in holder.items():
            if (id(holder), key) in known or (id(holder), key) in rows:
                continue
            name = f"{path}.{key}" if path else key
            copy = None if earlier is None else earlier.get(name[len(prefix) + 1 :])
            if copy is None and buffer is not None:
                copy = buffer.detach().clone()
            # an inference tensor has no version to ask for
            small = buffer is not None and (buffer.numel() <= _SMALL or buffer.is_inference())
            rows[id(holder), key] = LedgerRow(
                name,
                Writer.FORWARD,
                buffer,
                copy,
                version(buffer) if earlier is None else -1,
                holder,
                key,
                uncounted=small or isinstance(module, NormalisationLayer),
                exempt=copy is not None and finite.any_nonfinite([copy]),
            )
    return list(rows.values())


def rows_without_gradient(root: nn.Module) -> list[LedgerRow]:
    """The parameters that take no gradient, copied: the small ones first, up to `_MOST_BYTES` in all."""
    found: dict[int, tuple[dict[str, Any], str, str, nn.Parameter]] = {}
    for path, module in root.named_modules():
        holder = parameters_of(module)
        for key, parameter in holder.items():
            if parameter is None or parameter.requires_grad or isinstance(parameter, UninitializedParameter):
                continue
            if parameter.layout == torch.strided and not parameter.is_meta and not hasattr(parameter, "to_local"):
                found.setdefault(id(parameter), (holder, key, f"{path}.{key}" if path else key, parameter))
    rows, left = [], _MOST_BYTES
    for holder, key, name, parameter in sorted(found.values(), key=lambda entry: entry[3].nbytes):
        left -= parameter.nbytes
        if left < 0:
            break
        copy = parameter.detach().clone()
        rows.append(LedgerRow(name, Writer.NOBODY, parameter, copy, version(parameter), holder, key))
    return rows


# ---- bits


def differs(tensor: Tensor, copy: Tensor) -> Tensor:
    """1 if two tensors differ anywhere, else 0, on their device; NaN counts as equal to NaN."""
    tensor = tensor.detach()
    return ((tensor != copy) & ~((tensor != tensor) & (copy != copy))).any().float()


def is_plain(tensor: Tensor) -> bool:
    """Whether its bits can be compared here: not sparse, not quantized, not spread over ranks."""
    return tensor.layout == torch.strided and not hasattr(tensor, "to_local") and not tensor.is_quantized


# ---- bad values


def is_new_mask(row: LedgerRow, tensor: Tensor) -> bool:
    """Whether a buffer that is not finite is a mask that the model builds when it first sees a length: it was created
    in this forward pass (`None` before, or of another shape) and holds -Inf, but neither NaN nor +Inf."""
    dense = finite.readable(tensor)
    return dense is not None and row.is_new(tensor) and not bool((dense.isnan() | dense.isposinf()).any())


def is_fault_of_script(row: LedgerRow) -> bool:
    """Whether bad values are a fault of the script's writes: the parameter was finite, nothing else trains it, and they
    are no mask (-Inf, and neither NaN nor +Inf)."""
    parameter, good = row.tensor, row.good
    assert parameter is not None
    assert good is not None
    if parameter.requires_grad or parameter.grad is not None or finite.any_nonfinite([good]):
        return False
    values = parameter.detach()
    return bool((values.isnan() | values.isposinf()).any())
