"""The rows of the ledger: a tensor that a step may change apart from its update, a copy of it, and who writes it.

A row is written by a forward pass (a buffer), by nobody up to now (a parameter without a gradient), by the training
script between steps (a teacher that follows the student), or by the optimizer's update (every other parameter, which a
forward pass may write as well: a codebook that follows its inputs, a temperature that is clamped).

Every tensor counts its in-place writes (`_version`), and a buffer that the forward pass replaces (`self.mean = 0.9 *
self.mean + ...`) is noticed by identity. But fused kernels write without counting: `native_batch_norm` changes the
running statistics and leaves their versions alone. So small buffers and those of normalisation layers are taken as
written in every step; only large ones (causal masks, position tables) are not copied as long as nothing writes them.
A write through `tensor.data` is not counted either: what the model's code reaches that way
(`reached_through_data`) is a suspect, whose bits are compared.

Many rows are copied, restored and compared in one `foreach` call each.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from nantrap import finite
from nantrap.guard.torch_private import (
    NormalisationLayer,
    buffers_of,
    copy_parts,
    parameters_of,
    restore_parts,
    version,
    version_of,
)

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
        return finite.is_plain(tensor) and bool(finite.differs(tensor, self.copy))

    def is_new(self, tensor: Tensor) -> bool:
        """Whether this tensor was created since the copy: there was none before, or one of another shape."""
        return self.copy is None or not have_same_shape(self.copy, tensor)


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
                copy = finite.copy_of(buffer)
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
            if parameter is None or parameter.requires_grad or is_lazy(parameter):
                continue
            if parameter.layout == torch.strided and not parameter.is_meta and not hasattr(parameter, "to_local"):
                found.setdefault(id(parameter), (holder, key, f"{path}.{key}" if path else key, parameter))
    rows, left = [], _MOST_BYTES
    for holder, key, name, parameter in sorted(found.values(), key=lambda entry: finite.size_in_bytes(entry[3])):
        left -= finite.size_in_bytes(parameter)
        if left < 0:
            break
        copy = finite.copy_of(parameter)
        rows.append(LedgerRow(name, Writer.NOBODY, parameter, copy, version(parameter), holder, key))
    return rows


# ---- bits


def have_same_shape(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have one shape; nested ones, which have none, never."""
    return not (a.is_nested or b.is_nested) and a.shape == b.shape


# ---- bad values


def is_mask(tensor: Tensor) -> bool:
    """Whether a tensor that is not finite may be a mask: it holds -Inf, and neither NaN nor +Inf."""
    dense = finite.readable(tensor)
    return dense is not None and not bool((dense.isnan() | dense.isposinf()).any())


def is_mask_of_forward(row: LedgerRow, tensor: Tensor) -> bool:
    """Whether a buffer that is not finite is a mask that the forward pass built when it first saw a length (`None`
    before, or of another shape), or filled again. A vector may be a statistic, unless it holds 0 beside -Inf."""
    if not is_mask(tensor):
        return False
    if row.is_new(tensor) or tensor.dim() > 1:
        return True
    others = tensor[~tensor.isinf()]
    return bool(others.numel()) and not bool(others.any())


def is_fault_of_script(row: LedgerRow) -> bool:
    """Whether bad values are a fault of the script's writes: the parameter was finite, nothing else trains it, and they
    are no mask (-Inf, and neither NaN nor +Inf)."""
    parameter, good = row.tensor, row.good
    assert parameter is not None
    assert good is not None
    if parameter.requires_grad or parameter.grad is not None or finite.any_nonfinite([good]):
        return False
    return not is_mask(parameter.detach())


_PLAIN = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_shape_of = attrgetter("shape")


def copy_rows(rows: Sequence[LedgerRow]) -> None:
    """Copy what is there now, in one call for all rows."""
    tensors = [row.current() for row in rows]
    copies = copied(tensors, [row.copy for row in rows])
    for row, tensor, copy in zip(rows, tensors, copies, strict=True):
        row.tensor, row.copy, row.version = tensor, copy, version(tensor)


def copied(tensors: Sequence[Tensor | None], earlier: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Copies of tensors, in one call for those that fit into the memory of an earlier copy."""
    copies: list[Tensor | None] = []
    targets: list[Tensor] = []
    sources: list[Tensor] = []
    for tensor, copy in zip(tensors, earlier, strict=True):
        if tensor is None:
            copies.append(None)
        elif (
            copy is None
            or not have_same_shape(copy, tensor)
            or copy.dtype != tensor.dtype
            or copy.device != tensor.device
        ):
            copies.append(finite.copy_of(tensor))
        else:
            copies.append(copy)
            targets.append(copy)
            sources.append(tensor)
    if targets:
        with torch.no_grad():
            copy_parts(targets, sources)
    return copies


Kept = tuple[LedgerRow, Tensor | None, Tensor | None]
"""A row, a tensor to put into its place, and the contents to give to that tensor."""


def contents_of(rows: Iterable[LedgerRow]) -> list[Kept]:
    """What is there now, with a copy of its contents."""
    return [(row, t, None if t is None else finite.copy_of(t)) for row in rows for t in (row.current(),)]


def put_back(entries: Iterable[Kept]) -> None:
    """Put tensors back into their places, and their contents in one call.

    It does not count as a write: a graph that holds a tensor may still be run backward.
    """
    targets: list[Tensor] = []
    sources: list[Tensor] = []
    for row, tensor, copy in entries:
        if row.holder is not None:
            row.holder[row.key] = tensor
        if tensor is not None and copy is not None:
            targets.append(tensor)
            sources.append(copy)
    if targets:
        restore_parts(targets, sources)


# ---- compared


def written_uncounted(rows: Iterable[LedgerRow]) -> list[LedgerRow]:
    """The rows whose versions say that nothing wrote them while their bits differ from the copy. One host read."""
    asked: list[LedgerRow] = []
    flags: list[Tensor] = []
    for row in rows:
        tensor, copy = row.current(), row.copy
        if row.uncounted or tensor is None or copy is None or tensor is not row.tensor:
            continue
        if version(tensor) == row.version and finite.is_plain(tensor) and copy.shape == tensor.shape:
            asked.append(row)
            flags.append(finite.differs(tensor, copy))
    return [row for row, flag in zip(asked, finite.read(flags), strict=True) if flag] if flags else []


# ---- what a step asks of many rows at once


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What the usual step does: it writes the small buffers, and no other.

    Attributes:
        holders: the table in which each buffer is held.
        keys: its name there.
        tensors: the buffer that was there.
        sources: the buffers that are copied in each step.
        copies: where to.
        shapes: of both.
        judged: those of the sources that must be finite.
        counted: the large buffers, which count their writes.
        versions: of those.
    """

    holders: list[dict[str, Any]]
    keys: list[str]
    tensors: list[Tensor | None]
    sources: list[Tensor]
    copies: list[Tensor]
    shapes: list[torch.Size]
    judged: list[Tensor]
    counted: list[Tensor]
    versions: list[int]


class Counted:
    """Rows whose writes one sum counts. A step asks only where there are such rows: most models have none."""

    def __init__(self, rows: list[LedgerRow], versions: list[int]) -> None:
        self.rows = rows
        self._tensors = [row.tensor for row in rows]
        self._versions = versions
        self._writes = sum(versions)

    def any_written(self) -> bool:
        """Whether any of them was written since."""
        writes: int = sum(map(version_of, self._tensors))
        return writes != self._writes

    def written(self) -> list[LedgerRow]:
        """The rows that were written since."""
        return [row for row, before in zip(self.rows, self._versions, strict=True) if version(row.tensor) != before]


def _is_rare(tensor: Tensor) -> bool:
    """Whether a tensor cannot be copied, or not be read, together with others in one call."""
    if tensor.__class__ is not Tensor or not finite.is_plain(tensor):
        return True
    if not (finite.is_ordinary(tensor) or tensor.is_floating_point() or tensor.is_complex()):
        return True
    return tensor.is_conj() or tensor.is_neg() or 0 in tensor.stride()


def make_plan(rows: Sequence[LedgerRow]) -> CopyPlan | None:
    """The lists of the usual step, from the copies that were just made; `None` if a buffer is of a rare kind."""
    sources: list[Tensor] = []
    copies: list[Tensor] = []
    judged: list[Tensor] = []
    counted: list[Tensor] = []
    for row in rows:
        tensor, copy = row.tensor, row.copy
        if tensor is None or copy is None:
            continue
        if not row.uncounted:
            counted.append(tensor)
            continue
        if _is_rare(tensor):
            return None
        sources.append(tensor)
        copies.append(copy)
        if row.exempt or not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
            continue
        if tensor.dtype not in _PLAIN:
            return None
        judged.append(tensor)
    if any(tensor.is_inference() for tensor in counted):  # it has no version to ask for
        return None
    return CopyPlan(
        [row.holder for row in rows if row.holder is not None],
        [row.key for row in rows],
        [row.tensor for row in rows],
        sources,
        copies,
        list(map(_shape_of, sources)),
        judged,
        counted,
        list(map(version_of, counted)),
    )
