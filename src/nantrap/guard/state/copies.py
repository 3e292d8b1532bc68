"""Copies of many rows of the ledger in one `foreach` call each: made, put back, and compared with what is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from nantrap import finite
from nantrap.guard.state.rows import LedgerRow, differs, is_plain
from nantrap.guard.torch_private import copy_parts, version, version_of

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
        elif copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype or copy.device != tensor.device:
            copies.append(tensor.detach().clone())
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
    return [(row, t, None if t is None else t.detach().clone()) for row in rows for t in (row.current(),)]


def put_back(entries: Iterable[Kept], *, uncounted: bool = False) -> None:
    """Put tensors back into their places, and their contents in one call.

    Args:
        entries: what is put back.
        uncounted: do not count it as a write: a graph that holds a tensor may still be run backward.
    """
    targets: list[Tensor] = []
    sources: list[Tensor] = []
    for row, tensor, copy in entries:
        if row.holder is not None:
            row.holder[row.key] = tensor
        if tensor is not None and copy is not None:
            targets.append(tensor.data if uncounted else tensor)
            sources.append(copy)
    if targets:
        with torch.no_grad():
            copy_parts(targets, sources)


# ---- compared


def written_uncounted(rows: Iterable[LedgerRow]) -> list[LedgerRow]:
    """The rows whose versions say that nothing wrote them while their bits differ from the copy. One host read."""
    asked: list[LedgerRow] = []
    flags: list[Tensor] = []
    for row in rows:
        tensor, copy = row.current(), row.copy
        if row.uncounted or tensor is None or copy is None or tensor is not row.tensor:
            continue
        if version(tensor) == row.version and copy.shape == tensor.shape and is_plain(tensor):
            asked.append(row)
            flags.append(differs(tensor, copy))
    return [row for row, flag in zip(asked, finite.read(flags), strict=True) if flag] if flags else []


def has_same_bits(tensor: Tensor, copy: Tensor) -> bool:
    """Whether a tensor holds the values of its copy; NaN counts as equal to NaN."""
    if tensor.shape != copy.shape or tensor.dtype != copy.dtype:
        return False
    if tensor.layout != torch.strided or tensor.is_quantized:
        return True  # no comparison is defined
    return not bool(differs(tensor, copy))


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
        """Those that were written since."""
        return [row for row, before in zip(self.rows, self._versions, strict=True) if version(row.tensor) != before]


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
        sources.append(tensor)
        copies.append(copy)
        if row.exempt or not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
            continue
        if tensor.__class__ is not Tensor or tensor.layout != torch.strided or tensor.dtype not in _PLAIN:
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
