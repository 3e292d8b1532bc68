"""Parameters that a forward pass writes itself: a codebook that follows its inputs, a temperature that is clamped.

A refused step must put those back too. Copying all parameters in every step would cost as much as the update, so the
first step learns which ones are written, by their version counters and by their bits (a write through `tensor.data` is
not counted), and later steps copy only those. A forward pass that begins to write another parameter later is noticed
if the write is counted, and the next step learns again. What the model's code reaches through `tensor.data` is always
copied: a codebook is reset every thousand steps, and nothing counts it. Where the bits show such a write to a parameter
that the code does not name (`for p in model.parameters(): p.data.clamp_(...)`), all of them are copied from then on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from nantrap import finite
from nantrap.guard.torch_private import version, version_of


class ForwardWrites:
    """Holds a copy of each parameter that the forward pass writes; in the first step, of all parameters.

    Args:
        parameters: the guarded parameters; the list may grow.
        limit_bytes: no copy of all parameters is made when it would take more than this.
        suspects: parameters that the model's code may write without counting.
    """

    def __init__(
        self, parameters: list[nn.Parameter], *, limit_bytes: int, suspects: Iterable[nn.Parameter] = ()
    ) -> None:
        self._parameters = parameters
        self._suspects = frozenset(map(id, suspects))  # the model holds them
        self._limit_bytes = limit_bytes
        self._learning = True
        self._copies: list[tuple[int, nn.Parameter, Tensor, int]] = []
        self._uncounted: set[int] = set()
        self._unexplained = 0
        self.writes_uncounted = False
        """Whether the forward pass writes a parameter in a way that versions do not tell."""
        self.copies_something = True
        """Whether `copy` has anything to do at the beginning of a step."""
        self.writes_at_begin: int | None = None
        """How often the parameters had been written when the step began; `None` between steps."""

    def learn(self) -> None:
        """Before the update of a good step: from the next step on, only what was written is copied."""
        if self.writes_at_begin is None:
            return
        changed = sum(map(version_of, self._parameters)) != self.writes_at_begin
        self._unexplained = self._not_explained()
        if self._learning:
            self._uncounted = self._written_uncounted()
            self.writes_uncounted = bool(self._uncounted)
            if self._uncounted - self._suspects:  # a loop over all of them, say, which changes another one later
                self._suspects |= {id(parameter) for _, parameter, *_ in self._copies}
            self._copies = [e for e in self._copies if id(e[1]) in self._suspects or self._was_written(e)]
            self._learning = False
        elif changed and not self._accounted_for():
            self._learning = True
        self.copies_something = self._learning or bool(self._copies)

    def forget_update(self) -> None:
        """The update that followed `learn` was undone: its writes, and those that undid it, are no forward pass's."""
        if self.writes_at_begin is not None:
            self.writes_at_begin += self._not_explained() - self._unexplained

    def restore(self) -> bool:
        """Put back what the forward pass wrote. Returns whether every parameter is as it was when the step began."""
        if self.writes_at_begin is None:
            return True
        silent = self._uncounted or self._suspects
        if not silent and sum(map(version_of, self._parameters)) == self.writes_at_begin:
            return True
        whole = self._accounted_for()
        with torch.no_grad():
            for entry in self._copies:
                if self._was_written(entry):
                    entry[1].copy_(entry[2])
        if not whole:
            self._learning = self.copies_something = True
        return whole

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Whatever is run inside, the copied parameters end as they are now."""
        now = [(entry[1], entry[1].detach().clone()) for entry in self._copies if self._was_written(entry)]
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, values in now:
                    parameter.copy_(values)

    def _was_written(self, entry: tuple[int, nn.Parameter, Tensor, int]) -> bool:
        _, parameter, copy, before = entry
        if version(parameter) != before or id(parameter) in self._uncounted:
            return True
        return id(parameter) in self._suspects and _is_plain(parameter) and bool(differs(parameter, copy))

    def _written_uncounted(self) -> set[int]:
        """The copied parameters whose bits changed though their versions did not, by id (they are held)."""
        asked = [entry for entry in self._copies if version(entry[1]) == entry[3] and _is_plain(entry[1])]
        flags = [differs(parameter, kept) for _, parameter, kept, _ in asked]
        values = finite.read(flags) if flags else []
        return {id(entry[1]) for entry, flag in zip(asked, values, strict=True) if flag}

    def _accounted_for(self) -> bool:
        """Whether the copied parameters explain every write since the step began."""
        return self._not_explained() == 0

    def _not_explained(self) -> int:
        """How many writes since the step began were to parameters that are not copied."""
        assert self.writes_at_begin is not None
        now = sum(map(version_of, self._parameters))
        copied = sum(version(parameter) - before for _, parameter, _, before in self._copies)
        return int(now - copied - self.writes_at_begin)

    def copy(self) -> None:
        """Before the first forward pass of a step: copy what it may write."""
        wanted = list(enumerate(self._parameters))
        if not self._learning:
            known = {index for index, *_ in self._copies}
            wanted = [(index, parameter) for index, parameter in wanted if index in known]
        elif sum(parameter.nbytes for parameter in self._parameters) > self._limit_bytes:
            self._learning = False
            wanted = [(index, parameter) for index, parameter in wanted if id(parameter) in self._suspects]
            self.copies_something = bool(wanted)
        kept = {id(parameter): copy for _, parameter, copy, _ in self._copies}
        self._copies = []
        with torch.no_grad():
            for index, parameter in wanted:
                copy = kept.get(id(parameter))
                if copy is None or copy.shape != parameter.shape:
                    copy = parameter.detach().clone()
                else:
                    copy.copy_(parameter)
                self._copies.append((index, parameter, copy, version(parameter)))


def differs(tensor: Tensor, copy: Tensor) -> Tensor:
    """1 if two tensors differ anywhere, else 0, on their device; NaN counts as equal to NaN."""
    tensor = tensor.detach()
    return ((tensor != copy) & ~((tensor != tensor) & (copy != copy))).any().float()


def put_back_silently(kept: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Give tensors the values of their copies where they differ, without counting it: what changed them was not
    counted either."""
    for tensor, copy in kept:
        if _is_plain(tensor) and bool(differs(tensor, copy)):
            tensor.data.copy_(copy)


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not hasattr(tensor, "to_local") and not tensor.is_quantized
