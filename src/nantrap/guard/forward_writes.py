"""Parameters that a forward pass writes itself: a codebook that follows its inputs, a temperature that is clamped.

A refused step must put those back too. Copying all parameters in every step would cost as much as the update, so the
first step learns which ones are written, by their version counters, and later steps copy only those. A forward pass
that begins to write another parameter later is noticed, and the next step learns again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from nantrap.guard.torch_private import version, version_of


class ForwardWrites:
    """Holds a copy of each parameter that the forward pass writes; in the first step, of all parameters.

    Args:
        parameters: the guarded parameters; the list may grow.
        limit_bytes: no copy of all parameters is made when it would take more than this.
    """

    def __init__(self, parameters: list[nn.Parameter], *, limit_bytes: int) -> None:
        self._parameters = parameters
        self._limit_bytes = limit_bytes
        self._learning = True
        self._copies: list[tuple[int, nn.Parameter, Tensor, int]] = []
        self.copies_something = True
        """Whether `copy` has anything to do at the beginning of a step."""
        self.writes_at_begin: int | None = None
        """How often the parameters had been written when the step began; `None` between steps."""

    def learn(self) -> None:
        """Before the update of a good step: from the next step on, only what was written is copied."""
        if self.writes_at_begin is None:
            return
        changed = sum(map(version_of, self._parameters)) != self.writes_at_begin
        if self._learning:
            self._copies = [entry for entry in self._copies if version(entry[1]) != entry[3]] if changed else []
            self._learning = False
        elif changed and not self._accounted_for():
            self._learning = True
        self.copies_something = self._learning or bool(self._copies)

    def restore(self) -> bool:
        """Put back what the forward pass wrote. Returns whether every parameter is as it was when the step began."""
        if self.writes_at_begin is None:
            return True
        if sum(map(version_of, self._parameters)) == self.writes_at_begin:
            return True
        whole = self._accounted_for()
        with torch.no_grad():
            for _, parameter, kept, before in self._copies:
                if version(parameter) != before:
                    parameter.copy_(kept)
        if not whole:
            self._learning = self.copies_something = True
        return whole

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Whatever is run inside, the copied parameters end as they are now."""
        now = [
            (parameter, parameter.detach().clone())
            for _, parameter, _, before in self._copies
            if version(parameter) != before
        ]
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, values in now:
                    parameter.copy_(values)

    def _accounted_for(self) -> bool:
        """Whether the copied parameters explain every write since the step began."""
        now = sum(map(version_of, self._parameters))
        copied = sum(version(parameter) - before for _, parameter, _, before in self._copies)
        return bool(now - copied == self.writes_at_begin)

    def copy(self) -> None:
        """Before the first forward pass of a step: copy what it may write."""
        wanted = list(enumerate(self._parameters))
        if not self._learning:
            known = {index for index, *_ in self._copies}
            wanted = [(index, parameter) for index, parameter in wanted if index in known]
        elif sum(parameter.nbytes for parameter in self._parameters) > self._limit_bytes:
            self._learning = self.copies_something = False
            wanted = []
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
