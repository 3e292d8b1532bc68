"""Which memory holds non-finite values, and the origins whose badness has flowed into it (the rules are in `trace`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nantrap.finite import bad_places, readable
from nantrap.locate.trace.operations import MIXES, OVERWRITE, OVERWRITE_PART, SELECTS
from nantrap.locate.trace.records import CLONE_LIMIT, External, Op, Registered
from nantrap.locate.trace.storage import (
    Memory,
    Where,
    covers_storage,
    extremes,
    looks_like_mask,
    numbers_in,
    tensors_in,
)

Origins = frozenset[int]
"""Indices of operations; negative ones are those of tensors that were bad before the step."""
_NONE: Origins = frozenset()


class Flow:
    """Follows non-finite values from memory to memory. Memory is known by its key (`Memory`).

    State held: which memory was seen, which of it is bad and by which origins, which was never written, the tensors
    that were bad before the step, and the origins of NaN, Inf and -Inf that were taken out of tensors as plain numbers.

    Args:
        registered: the tensors known by name when the step begins.
        ops: the operations of the trace so far; one that allocated memory is marked when that is read unwritten.
    """

    def __init__(self, registered: Registered, ops: list[Op]) -> None:
        self.externals: dict[int, External] = {}
        """Tensors that were bad before the step, by negative indices."""
        self.named: dict[int, tuple[Any, str]] = {}
        """Kind and name of the memory that has a name."""
        self._ops = ops
        self._memory = Memory()
        self._bad: dict[int, Origins] = {}
        self._known: set[int] = set()
        self._uninitialised: dict[int, int] = {}  # which operation allocated it
        self._unread: dict[int, int] = {}  # which of `externals` it is
        self._tensors_named: dict[int, Tensor] = {}
        self._erased: dict[int, tuple[Tensor, Origins]] = {}
        self._numbers: dict[str, Origins] = {}
        for kind in ("optimizer_state", "batch", "buffers", "parameters"):
            for name, tensor in getattr(registered, kind).items():
                key = self.key(tensor)
                self.named[key] = (kind.removesuffix("s") if kind != "batch" else kind, name)
                self._tensors_named[key] = tensor

    def key(self, tensor: Tensor) -> int:
        """The identity of a tensor's memory."""
        return self._memory.key(tensor)

    def where(self, tensor: Tensor) -> Where:
        """Which part of its memory a tensor is."""
        return self._memory.where(tensor)

    # ---- what an operation reads

    def read(self, arguments: Any, *, reads: bool) -> tuple[bool, bool, Origins]:
        """Whether any input holds NaN, or Inf, and the origins that flowed into the bad ones.

        Args:
            arguments: of the operation.
            reads: whether it reads values; a view of empty memory does not.
        """
        any_nan = any_inf = False
        origins = _NONE
        for tensor in tensors_in(arguments):
            key = self.key(tensor)
            uninitialised = key in self._uninitialised
            if uninitialised and not reads and key not in self._bad:
                continue
            if key in self._known and key not in self._bad and not uninitialised:
                continue
            nan, inf, _ = extremes(tensor)
            if key not in self._known:
                self._known.add(key)
                if nan or inf:
                    self._add_bad(tensor, key)
            if not (nan or inf):
                continue
            if uninitialised and key not in self._bad:
                maker = self._uninitialised[key]
                self._ops[maker] = self._ops[maker]._replace(made="uninitialised")
                self._bad[key] = frozenset({maker})
            any_nan, any_inf = any_nan or nan, any_inf or inf
            origins |= self._bad.get(key, _NONE)
        for number in numbers_in(arguments):
            any_nan, any_inf = any_nan or math.isnan(number), any_inf or math.isinf(number)
        return any_nan, any_inf, origins

    def taken_out(self, tensor: Tensor, origins: Origins) -> None:
        """The bad value of a tensor was read as a plain number: by `.item()`, say."""
        self._numbers[str(tensor.item())] = origins

    def origins_of_numbers(self, arguments: Any) -> Origins:
        """The origins of bad plain numbers that were taken out of tensors before."""
        found = (self._numbers.get(str(float(n)), _NONE) for n in numbers_in(arguments) if not math.isfinite(n))
        return frozenset().union(*found)

    def read_first_by(self, op: int, keys: Iterable[int]) -> None:
        """Of tensors that were bad before the step: this operation is the first that computes with them."""
        for key in keys:
            if key in self._unread:
                index = self._unread.pop(key)
                self.externals[index] = replace(self.externals[index], first_reader=op)

    def unseen_writes(self, arguments: Any, op: int, own: set[int]) -> tuple[bool, bool, Origins]:
        """Inputs that were finite when they were last read and are not now: written, but by no operation.

        Args:
            arguments: what the operation read.
            op: the operation, by index.
            own: the memory that it wrote itself.
        """
        any_nan = any_inf = False
        origins = _NONE
        for tensor in tensors_in(arguments):
            key = self.key(tensor)
            if key in self._bad or key in self._uninitialised or key in own:
                continue
            nan, inf, _ = extremes(tensor)
            if nan or inf:
                self._add_bad(tensor, key, during=True)
                self.read_first_by(op, [key])
                any_nan, any_inf, origins = any_nan or nan, any_inf or inf, origins | self._bad[key]
        return any_nan, any_inf, origins

    @property
    def erased_any(self) -> bool:
        """Whether arithmetic erased a bad value anywhere."""
        return bool(self._erased)

    def follow_erased(self, name: str, arguments: Any, outputs: tuple[Tensor, ...], *, made: bool) -> Origins:
        """Note the places at which arithmetic erased a bad value; the origins if the operation fails just there.

        Args:
            name: of the operation.
            arguments: of the operation.
            outputs: its results.
            made: it made a bad value of inputs that were finite.
        """
        if len(outputs) != 1 or name in SELECTS or name in MIXES or not _has_places(outputs[0]):
            return _NONE
        result = outputs[0]
        finite = ~bad_places(result)
        if finite.shape != result.shape:  # this rank holds a part of it
            return _NONE
        gone, places, origins = self._places_in(arguments, result)
        if made and gone is not None and not bool((~finite & ~gone).any()):
            return origins
        either = gone if places is None else places if gone is None else gone | places
        if either is not None and bool((either & finite).any()):
            self._erased[self.key(result)] = (either & finite, origins)
        return _NONE

    def _places_in(self, arguments: Any, result: Tensor) -> tuple[Tensor | None, Tensor | None, Origins]:
        """The places of a result at which a value of an input had vanished before, those at which an input is bad now,
        and the origins of both."""
        gone: Tensor | None = None
        places: Tensor | None = None
        origins = _NONE
        for tensor in tensors_in(arguments):
            if tensor.layout != torch.strided or tensor.dim() > result.dim():
                continue
            if not _broadcasts(tensor.shape, result.shape):
                continue
            key = self.key(tensor)
            known, bad = self._erased.get(key), self._bad.get(key)
            if known is not None and known[0].numel() == tensor.numel():
                found = known[0].reshape(tensor.shape).to(result.device).expand(result.shape)
                gone, origins = found if gone is None else gone | found, origins | known[1]
            if bad and tensor.is_floating_point() and (own := bad_places(tensor)).shape == tensor.shape:
                found = own.to(result.device).expand(result.shape)  # one number may be the host's
                places, origins = found if places is None else places | found, origins | bad
        return gone, places, origins

    # ---- what an operation writes

    def allocated(self, key: int, op: int) -> None:
        """An operation gave memory that nothing was written to yet."""
        self._known.add(key)
        self._bad.pop(key, None)
        self._uninitialised[key] = op

    def wrote(self, output: Tensor, key: int, *, bad: bool, fresh: bool, origins: Origins) -> None:
        """An operation wrote a tensor.

        Args:
            output: the tensor.
            key: of its memory.
            bad: it holds non-finite values.
            fresh: its memory is new, and not that of an input.
            origins: of its bad values.
        """
        self._known.add(key)
        whole = fresh or covers_storage(output)
        if whole:
            self._uninitialised.pop(key, None)
        if not bad:
            if whole:
                self._bad.pop(key, None)
            return
        before = self._bad.get(key)
        self._bad[key] = origins if whole or before is None else origins | before

    def will_be_read(self, key: int) -> None:
        """Memory that was allocated empty is from here on read like any other."""
        self._uninitialised.pop(key, None)

    def pending(self, key: int) -> None:
        """Memory that another rank is about to fill: nothing is known of it until that was waited for."""
        self._known.add(key)
        self._uninitialised.pop(key, None)
        self._bad.pop(key, None)

    def is_overwritten(self, key: int, name: str) -> bool:
        """Whether an operation writes over a parameter or buffer. A part of a buffer may be a mask, and is no fault."""
        kind = self.named[key][0] if key in self.named else ""
        return bool(kind) and (name in OVERWRITE or (name in OVERWRITE_PART and kind == "parameter"))

    def overwritten(self, key: int, op: int) -> Origins:
        """A constant of the program was written over a parameter or buffer: that is where it began."""
        kind, name = self.named[key]
        external = External(kind, name, self._tensors_named[key], first_reader=op, during=True)
        return frozenset({self._add_external(external)})

    # ---- answers

    def origins_of(self, tensor: Tensor) -> Origins:
        """The origins whose non-finite values are in `tensor` now; empty if it is finite."""
        key = self.key(tensor)
        nan, inf, _ = extremes(tensor)
        if not (nan or inf):
            return _NONE
        if key not in self._known:
            self._known.add(key)
            self._add_bad(tensor, key)
        return self._bad.get(key, _NONE)

    def _add_bad(self, tensor: Tensor, key: int, *, during: bool = False) -> None:
        """A bad tensor from outside the trace: an origin of its own if it has a name and is not a mask."""
        kind, name = self.named.get(key, ("overwritten" if during else "constant", ""))
        trained = kind == "parameter" and tensor.requires_grad  # which no program uses as a mask
        dense = readable(tensor) if kind == "batch" else None
        data = dense is not None and bool(dense.isneginf().all())  # a mask leaves something
        mask = not (during or trained or data) and looks_like_mask(tensor)
        external = External(kind, name, tensor, mask=mask, during=during)
        index = self._add_external(external)
        self._bad[key] = _NONE if kind == "constant" or external.mask else frozenset({index})
        self._unread[key] = index

    def _add_external(self, external: External) -> int:
        """Keep a tensor from outside the trace; its index, which stands for it as an origin."""
        index = -1 - len(self.externals)
        self.externals[index] = external
        return index


def _has_places(result: Tensor) -> bool:
    """Whether values of a result can be followed place by place. A sparse gradient has values at some places only."""
    return result.is_floating_point() and result.numel() <= CLONE_LIMIT and result.layout == torch.strided


def _broadcasts(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether a tensor of one shape can be expanded to another."""
    return all(a in (1, b) for a, b in zip(reversed(shape), reversed(wanted), strict=False))
