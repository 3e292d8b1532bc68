"""The buffers as they were before the step: a skipped batch has already changed BatchNorm's statistics in its forward.

Every tensor counts its in-place writes (`_version`), and a buffer that the forward pass replaces (`self.mean = 0.9 *
self.mean + ...`) is noticed by identity. But fused kernels write without counting: `native_batch_norm` changes the
running statistics and leaves their versions alone. So small buffers and those of normalisation layers are taken as
written in every step; only large ones (causal masks, position tables) are not copied as long as nothing writes them.
The first steps compare their bits, and one that a forward pass writes uncounted (`tensor.data`) is copied from then on.

A parameter that takes no gradient (a codebook) can be written by a forward pass like a buffer: see `frozen`. The first
write in a forward pass makes it one of the buffers here. If the training script writes it between steps it is the
script's: see `script_writes`.

In the usual step only the small buffers are written, and no buffer is replaced. For it a `_Plan` is kept: lists for one
`foreach` call, instead of a Python call for each buffer.

In gradient accumulation there are two states to restore: to the beginning of the step, and, when only one micro-batch
is dropped, to the `mark` set after the last good one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn

from nantrap import finite
from nantrap.guard.state.forward_writes import differs
from nantrap.guard.state.frozen import FrozenParameters, frozen_in
from nantrap.guard.state.script_writes import ScriptWrites
from nantrap.guard.torch_private import (
    NormalisationLayer,
    buffers_of,
    copy_all,
    set_version,
    version,
    version_of,
)
from nantrap.incident import Finding, Phase
from nantrap.locate import finding

_SMALL = 4096
"""Up to this many values a buffer is copied in each step, without a check whether it was written."""
_COMPARED_STEPS = 2
"""Number of steps in which the bits of large buffers are compared, to find those that are written without being
counted."""

_PLAIN = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_shape_of = attrgetter("shape")


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the usual step does: it writes the small buffers, and no other.

    Attributes:
        sources: the buffers that are copied in each step.
        copies: where to.
        shapes: of both.
        judged: those of the sources that must be finite.
        counted: the large buffers, which count their writes.
        versions: of those.
    """

    sources: list[Tensor]
    copies: list[Tensor]
    shapes: list[torch.Size]
    judged: list[Tensor]
    counted: list[Tensor]
    versions: list[int]


class BufferShadow:
    """Holds a copy of each buffer, and the version at which the copy was made."""

    def __init__(self, root: nn.Module, also: Sequence[tuple[str, nn.Module]] = ()) -> None:
        self._slots: list[tuple[dict[str, Tensor | None], str, str]] = []
        self._holders: list[dict[str, Tensor | None]] = []
        self._names: list[str] = []
        self._uncounted: list[bool] = []
        self._seen: set[tuple[int, str]] = set()
        self._find("", root)
        for prefix, module in also:
            self._find(prefix, module)
        self._tensors: list[Tensor | None] = []
        self._versions: list[int] = []
        self._copies: list[Tensor | None] = []
        self._exempt: set[int] = set()
        self._mark: list[tuple[int, Tensor | None, Tensor | None]] | None = None
        self._lost: list[str] = []
        self._compared = 0
        self._frozen = FrozenParameters()
        self.script_writes = ScriptWrites()
        self.released: list[Any] = []
        """Parameters without a gradient that something other than a forward pass writes: not followed here."""
        self._plan: _Plan | None = None
        self.adopt(begins=True)
        self._frozen = FrozenParameters(frozen_in(root))

    def __bool__(self) -> bool:
        return bool(self._slots or self._frozen.entries)

    def add(self, prefix: str, module: nn.Module, *, earlier: Mapping[str, Tensor] | None = None) -> bool:
        """Follow the buffers of one more module from now on. Returns whether it has any that were not followed yet.

        Args:
            prefix: its name.
            module: the module.
            earlier: copies of its buffers from the beginning of the step, by name, if the module was called already.
        """
        before = len(self._slots)
        self._plan = None
        begins = len(prefix) + 1
        self._find(prefix, module)
        for holder, name, full in self._slots[before:]:
            tensor = holder.get(name)
            index = len(self._tensors)
            self._tensors.append(tensor)
            copy = None if earlier is None else earlier.get(full[begins:])
            if copy is None and tensor is not None:
                copy = tensor.detach().clone()
            self._copies.append(copy)
            self._versions.append(version(tensor) if earlier is None else -1)  # -1: written since the copy
            if copy is not None and finite.any_nonfinite([copy]):
                self._exempt.add(index)
        return len(self._slots) > before

    def _find(self, prefix: str, root: nn.Module) -> None:
        """Note where each buffer of a module is held, and whether its writes are counted."""
        for path, module in root.named_modules(prefix=prefix):
            holder = buffers_of(module)
            for name, buffer in holder.items():
                if (id(holder), name) in self._seen:
                    continue
                self._seen.add((id(holder), name))
                self._slots.append((holder, name, f"{path}.{name}" if path else name))
                self._holders.append(holder)
                self._names.append(name)
                # an inference tensor has no version to ask for
                small = buffer is not None and (buffer.numel() <= _SMALL or buffer.is_inference())
                self._uncounted.append(small or isinstance(module, NormalisationLayer))

    def adopt(self, *, begins: bool = False) -> None:
        """Accept the buffers as they are now: the user may write them between steps.

        Args:
            begins: a step begins, which will judge what the script wrote into parameters without a gradient.
        """
        if self._frozen.entries or self.script_writes.entries:
            self._judge_script_writes(begins)
        if not self._slots:
            return
        self._mark = None
        self._lost.clear()
        plan = self._plan
        if (
            plan is not None
            and self._compared > 2 * _COMPARED_STEPS
            and all(map(is_, map(dict.get, self._holders, self._names), self._tensors))
            and list(map(version_of, plan.counted)) == plan.versions
            and list(map(_shape_of, plan.sources)) == plan.shapes
        ):
            if plan.sources:
                with torch.no_grad():
                    copy_all(plan.copies, plan.sources)
            return
        current = self._current()
        if not self._tensors:
            self._tensors = current
            self._copies = [None if t is None else t.detach().clone() for t in current]
            self._versions = [version(t) for t in current]
            self._exempt = {i for i, t in enumerate(current) if t is not None and finite.any_nonfinite([t])}
        else:
            if self._compared <= 2 * _COMPARED_STEPS:
                self._compared += 1
                for i in self._written_uncounted(current):
                    self._uncounted[i] = True
            self._copy(self._changed(current), current)
        self._plan = self._make_plan()

    def _judge_script_writes(self, begins: bool) -> None:
        """Take over what the script wrote into parameters without a gradient."""
        self.release_written()
        if begins:
            self.script_writes.begin()
        else:
            self.script_writes.settle()

    def release_written(self) -> None:
        """The script wrote a parameter without a gradient, or a hook of the optimizer did: an average, say."""
        if self._frozen.entries and self._frozen.any_written():
            written = self._frozen.release_written()
            self.released += [entry.parameter for entry in written]
            self.script_writes.follow(written)

    def _make_plan(self) -> _Plan | None:
        """The lists of the usual step, from the copies that were just made; `None` if a buffer is of a rare kind."""
        sources: list[Tensor] = []
        copies: list[Tensor] = []
        judged: list[Tensor] = []
        counted: list[Tensor] = []
        for i, (tensor, copy) in enumerate(zip(self._tensors, self._copies, strict=True)):
            if tensor is None or copy is None:
                continue
            if not self._uncounted[i]:
                counted.append(tensor)
                continue
            sources.append(tensor)
            copies.append(copy)
            if i in self._exempt or not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
                continue
            if tensor.__class__ is not Tensor or tensor.layout != torch.strided or tensor.dtype not in _PLAIN:
                return None
            judged.append(tensor)
        if any(tensor.is_inference() for tensor in counted):  # it has no version to ask for
            return None
        shapes = list(map(_shape_of, sources))
        return _Plan(sources, copies, shapes, judged, counted, list(map(version_of, counted)))

    def largest(self, *, buffers: bool = True) -> Tensor | None:
        """A scalar that is finite only if every buffer written since the copy is: the largest magnitude, or 0 or NaN.

        Stays on the device. `None` if there is nothing to check. Buffers that held infinities from the start are
        left out; one that was created since the copy may be a mask, which `names_of_bad` finds out. What the script
        wrote into parameters without a gradient is checked, too.

        Args:
            buffers: whether the buffers were not judged yet in this step.
        """
        by_script = self.script_writes.written() if self.script_writes.entries else []
        if not buffers:
            return finite.nan_if_any_bad(by_script) if by_script else None
        plan = self._plan
        if (
            plan is not None
            and not by_script
            and all(map(is_, map(dict.get, self._holders, self._names), self._tensors))
            and list(map(version_of, plan.counted)) == plan.versions
            and not (self._frozen.entries and self._frozen.any_written())
        ):
            return finite.largest_value(plan.judged) if plan.judged else None
        suspects = [*self.suspects(), *by_script]
        return finite.nan_if_any_bad(suspects) if suspects else None

    def followed(self) -> set[int]:
        """The ids of the parameters that are held here like buffers."""
        return {id(entry.parameter) for entry in self._frozen.entries}

    def exempt_slots(self) -> frozenset[tuple[int, str]]:
        """The places (holder, name) of buffers that held deliberate infinities from the start."""
        return frozenset((id(self._slots[i][0]), self._slots[i][1]) for i in self._exempt)

    def suspects(self, *, known_only: bool = False, by_forward: bool = True) -> list[Tensor]:
        """The buffers that were written since the copy and were finite in it.

        Args:
            known_only: without those that were created since the copy. They may be masks (see `names_of_bad`),
                which only a host read can tell.
            by_forward: only a forward pass has run since the copy, so that what is written was written by it.
        """
        if by_forward and self._frozen.entries and self._frozen.any_written():
            self._follow_written()
        if not self._slots:
            return []
        current = self._current()
        return [
            tensor
            for i in self._changed(current)
            if i not in self._exempt
            and (tensor := current[i]) is not None
            and not (known_only and self._is_new(i, tensor))
        ]

    def exempt_names(self) -> list[str]:
        """The buffers that may be non-finite: they were so from the start, or are masks."""
        return [self._slots[i][2] for i in sorted(self._exempt)]

    def names_of_bad(self) -> list[tuple[str, Tensor]]:
        """The buffers that became non-finite since the copy, by name. Reads the device: for after an alarm.

        A buffer that was created in this forward pass (`None` before, or of another shape) and holds -Inf but
        no NaN is a mask that the model builds when it first sees a length; it is exempt from then on.
        """
        bad: list[tuple[str, Tensor]] = []
        current = self._current()
        for i in self._changed(current):
            tensor = current[i]
            if i in self._exempt or tensor is None or not finite.any_nonfinite([tensor]):
                continue
            dense = finite.readable(tensor)
            if dense is not None and self._is_new(i, tensor) and not bool((dense.isnan() | dense.isposinf()).any()):
                self._exempt.add(i)
                self._plan = None
            else:
                bad.append((self._slots[i][2], tensor))
        return bad

    def any_bad(self) -> bool:
        """Whether a buffer, or what the script wrote into a parameter without a gradient, is bad. Reads the device."""
        by_script = self.script_writes.find_bad() if self.script_writes.entries else []
        return bool(by_script) or bool(self.names_of_bad())

    def findings(self, phase: Phase) -> list[Finding]:
        """The bad buffers with statistics; a parameter that is treated as a buffer is called a parameter."""
        return [
            finding("parameter" if isinstance(tensor, nn.Parameter) else "buffer", name, tensor, phase)
            for name, tensor in self.names_of_bad()
        ]

    def mark(self) -> None:
        """A micro-batch was good: `restore_mark` comes back to here, `restore` still to the beginning of the step."""
        if self._slots:
            current = self._current()
            changed = self._changed(current)
            self._mark = [(i, t, None if t is None else t.detach().clone()) for i in changed for t in (current[i],)]

    def restore(self, *, uncounted: bool = False, keep_mark: bool = False) -> None:
        """Put every buffer back as it was at the last `adopt`, object and contents.

        Args:
            uncounted: do not count it as a write: a graph that holds a buffer may still be run backward.
            keep_mark: `restore_mark` may still be asked for, by a replay of the micro-batch that failed.
        """
        if not keep_mark:
            self._mark = None
        self._plan = None  # versions change here
        if self._frozen.entries and self._frozen.any_written():
            self._follow_written()
        current = self._current()
        for i in self._written_uncounted(current):
            # the copy may be of an earlier step: better than NaN, and said to be older
            self._uncounted[i] = finite.any_nonfinite([current[i]])
            if self._uncounted[i] and self._slots[i][2] not in self._lost:
                self._lost.append(self._slots[i][2])
        for i in self._changed(current):
            original, copy = self._tensors[i], self._copies[i]
            self._put(i, original, copy, uncounted=uncounted)
            if original is not None:
                self._versions[i] = version(original)

    def restore_mark(self) -> None:
        """Put every buffer back as it was at the last `mark`, or at the last `adopt` if there was none since."""
        mark = self._mark
        self.restore()
        if mark is not None:
            for i, tensor, copy in mark:
                self._put(i, tensor, copy)
            self._mark = mark

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Whatever runs inside, the buffers end as they are now, and both saved states stay as they were.

        Their counts of writes end as they are now, too: a graph that holds a buffer may still be run backward.
        """
        current, mark = self._current(), self._mark
        now = [(i, t, None if t is None else t.detach().clone()) for i in self._changed(current) for t in (current[i],)]
        counts, saved = [version(tensor) for tensor in current], list(self._versions)
        try:
            yield
        finally:
            for i, tensor, copy in now:
                self._put(i, tensor, copy)
            for tensor, count in zip(current, counts, strict=True):
                if tensor is not None and version(tensor) != count:
                    set_version(tensor, count)
            self._versions[: len(saved)] = saved
            self._mark = mark

    def differing(self) -> list[str]:
        """The buffers that are not as they were at the last `adopt`, bit for bit. Reads the device."""
        names = list(self._lost)
        for i, tensor in enumerate(self._current()):
            original, copy = self._tensors[i], self._copies[i]
            same = tensor is original and (tensor is None or copy is None or _same_bits(tensor, copy))
            if not same and self._slots[i][2] not in names:
                names.append(self._slots[i][2])
        return names

    def keep_where(self, bad: Tensor) -> None:
        """Without reading `bad` (1.0 or 0.0 on the device): restore where it is 1, adopt where it is 0."""
        current = self._current()
        for i in self._changed(current):
            original, copy, now = self._tensors[i], self._copies[i], current[i]
            if original is None or copy is None or now is None or now.shape != copy.shape:
                continue
            with torch.no_grad():
                now.copy_(torch.where(bad.to(now.device) > 0, copy, now))
        self._copy(self._changed(current), current)

    def _follow_written(self) -> None:
        """A forward pass wrote a parameter without a gradient: from now on it is treated as a buffer."""
        for entry in self._frozen.release_written():
            self._slots.append((entry.holder, entry.name, entry.path))
            self._holders.append(entry.holder)
            self._names.append(entry.name)
            self._plan = None
            self._uncounted.append(False)
            self._tensors.append(entry.parameter)
            self._copies.append(entry.copy)
            self._versions.append(entry.version)
            if finite.any_nonfinite([entry.copy]):
                self._exempt.add(len(self._slots) - 1)

    def _written_uncounted(self, current: list[Tensor | None]) -> list[int]:
        """The buffers whose versions say that nothing wrote them while their bits differ from the copy."""
        asked = [
            i
            for i, tensor in enumerate(current)
            if not self._uncounted[i]
            and tensor is not None
            and tensor is self._tensors[i]
            and version(tensor) == self._versions[i]
            and (copy := self._copies[i]) is not None
            and copy.shape == tensor.shape
            and tensor.layout == torch.strided
            and not tensor.is_quantized
        ]
        flags = [differs(current[i], self._copies[i]) for i in asked]  # type: ignore[arg-type]
        return [i for i, differs in zip(asked, finite.read(flags), strict=True) if differs] if flags else []

    def _current(self) -> list[Tensor | None]:
        return [holder.get(name) for holder, name, _ in self._slots]

    def _put(self, index: int, tensor: Tensor | None, copy: Tensor | None, *, uncounted: bool = False) -> None:
        holder, name, _ = self._slots[index]
        self._plan = None
        holder[name] = tensor
        if tensor is not None and copy is not None:
            with torch.no_grad():
                (tensor.data if uncounted else tensor).copy_(copy)

    def _is_new(self, index: int, tensor: Tensor) -> bool:
        copy = self._copies[index]
        return copy is None or copy.shape != tensor.shape

    def _changed(self, current: list[Tensor | None]) -> list[int]:
        tensors, versions, uncounted = self._tensors, self._versions, self._uncounted
        return [
            i
            for i, tensor in enumerate(current)
            if uncounted[i] or tensor is not tensors[i] or (tensor is not None and version(tensor) != versions[i])
        ]

    def _copy(self, changed: list[int], current: list[Tensor | None]) -> None:
        """Copy the buffers at these positions, in one call for those whose copies fit."""
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        self._plan = None
        for i in changed:
            tensor, copy = current[i], self._copies[i]
            self._tensors[i] = tensor
            if tensor is None:
                self._copies[i], self._versions[i] = None, 0
                continue
            self._versions[i] = version(tensor)
            if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype or copy.device != tensor.device:
                self._copies[i] = tensor.detach().clone()
            else:
                targets.append(copy)
                sources.append(tensor)
        if targets:
            with torch.no_grad():
                copy_all(targets, sources)


def _same_bits(tensor: Tensor, copy: Tensor) -> bool:
    """Whether two tensors hold the same values; NaN counts as equal to NaN."""
    if tensor.shape != copy.shape or tensor.dtype != copy.dtype:
        return False
    if tensor.layout != torch.strided or tensor.is_quantized:
        return True  # no comparison is defined
    return bool(((tensor == copy) | ((tensor != tensor) & (copy != copy))).all())
