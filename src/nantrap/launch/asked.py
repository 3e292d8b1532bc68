"""The scalars that a script has read or tested, and that had no backward pass yet."""

from __future__ import annotations

import math
import weakref
from typing import Any

from torch import Tensor

_MOST = 16


class Asked:
    """Holds the scalars that the script looked at since the last forward pass began, with their graphs.

    `open` says whether a forward pass waits for its backward pass; at any other time nothing is noted.
    """

    def __init__(self) -> None:
        self.open = False
        self.tensors: list[Tensor] = []
        self._trained: weakref.ref[Tensor] | None = None

    def trained(self, loss: Tensor) -> None:
        """A backward pass runs from this loss: what the script asks about it afterwards is of no interest."""
        self._trained = weakref.ref(loss)

    def note(self, tensor: Any) -> None:
        """The script looks at a tensor; only a scalar with a graph can be a loss."""
        if (
            tensor.grad_fn is not None
            and tensor.numel() == 1
            and not any(tensor is each for each in self.tensors)
            and (self._trained is None or self._trained() is not tensor)
        ):
            self.tensors.append(tensor)
            if len(self.tensors) > _MOST:  # the last ones: a loss is looked at after whatever is printed on the way
                del self.tensors[0]

    def take(self, *, instead_of: Tensor | None = None) -> list[Tensor]:
        """Those that are not finite; the list is cleared.

        Args:
            instead_of: the loss of the backward pass that comes now, which is not abandoned.
        """
        if not self.tensors:
            return []
        tensors, self.tensors = self.tensors, []
        if len(tensors) == 1 and tensors[0] is instead_of:  # the usual case: the loss was printed
            return []
        was, self.open = self.open, False  # what is read here is not asked by the script
        try:
            return [each for each in tensors if each is not instead_of and not math.isfinite(float(each.detach()))]
        finally:
            self.open = was
