"""A state that the loop carries from step to step: `output, hidden = model(data, hidden)`.

If a step is not made, what the model gave in it must not go into the next one: a hidden state that went bad would spoil
every step after it. It is recognised when it comes back: an argument of the next call is non-finite, and holds the
values that an output of the refused call has. The refused call was given the same argument, finite: the state as it was
before that step. A batch is never an output of the model, so it is never written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nantrap import finite
from nantrap.locate import RootCall, tensors_of
from nantrap.locate.trace.storage import share_memory
from nantrap.locate.wrapping import arguments_by_name


@dataclass(frozen=True, slots=True)
class CarriedStates:
    """What may come back from a step that was not made. Nothing else of its batch is kept alive.

    Attributes:
        module: what was called.
        given: the outputs that are non-finite.
        before: the finite arguments that look like one of them, by name.
    """

    module: nn.Module
    given: list[Tensor]
    before: dict[str, Tensor]

    def restore(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        """Write the values from before the step into the states that come back from it.

        Args:
            args: with what the module is called now.
            kwargs: the same by name.

        Returns:
            The names of the arguments that were restored.
        """
        restored = []
        for name, tensor in tensors_of(arguments_by_name(self.module, args, kwargs)):
            before = self.before.get(name)
            if before is None or not _are_alike(before, tensor) or share_memory(before, tensor):
                continue
            if tensor.requires_grad or not finite.any_nonfinite([tensor]):
                continue
            if any(_is_same(tensor, output) for output in self.given):
                with torch.no_grad():
                    tensor.data.copy_(before)  # not counted as a write: a graph of the program may hold the tensor
                restored.append(name)
        return restored


def carried_states(refused: RootCall) -> CarriedStates | None:
    """The states that a call gave and that must not go into the next one; `None` if there can be none."""
    given = [output.value for output in refused.watched if output.value is not None]
    given = [value for value in given if finite.any_nonfinite([value])]
    if refused.module is None or not given:
        return None
    arguments = list(tensors_of(arguments_by_name(refused.module, refused.args, refused.kwargs)))
    if len(arguments) < 2:  # the batch alone
        return None
    before = {name: each for name, each in arguments if any(_are_alike(each, value) for value in given)}
    before = {name: each for name, each in before.items() if not finite.any_nonfinite([each])}
    return CarriedStates(refused.module, given, before) if before else None


def _are_alike(one: Tensor, other: Tensor) -> bool:
    """Whether a tensor can hold the values of another one."""
    if not (finite.is_ordinary(one) and finite.is_ordinary(other)):
        return False
    return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device


def _is_same(state: Tensor, output: Tensor) -> bool:
    """Whether a tensor is an output of the model, a view of it, or a copy that does not only hold NaN."""
    if not _are_alike(state, output):
        return False
    if share_memory(state, output):
        return True
    known = state.isfinite()
    return bool(state[known].any()) and torch.equal(state.nan_to_num(), output.nan_to_num())
