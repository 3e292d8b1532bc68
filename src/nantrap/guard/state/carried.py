"""A state that the loop carries from step to step: `output, hidden = model(data, hidden)`.

If a step is not made, what the model gave in it must not go into the next one: a hidden state that went bad would spoil
every step after it. It is recognised when it comes back: an argument of the next call is non-finite, and holds the
values that an output of the refused call has. The refused call was given the same argument, finite: the state as it was
before that step. A batch is never an output of the model, so it is never written.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nantrap import finite
from nantrap.locate import RootCall, tensors_of
from nantrap.locate.trace.storage import share_memory
from nantrap.locate.wrapping import arguments_by_name


def restore_carried(refused: RootCall, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Write the values from before a refused step into the states that come back from it.

    Args:
        refused: the call of the step that was not made.
        module: what is called now.
        args: with these positional arguments.
        kwargs: and these keyword arguments.

    Returns:
        The names of the arguments that were restored.
    """
    if refused.module is not module:
        return []
    earlier = dict(tensors_of(arguments_by_name(module, refused.args, refused.kwargs)))
    given = [output.value for output in refused.watched if output.value is not None]
    restored = []
    for name, tensor in tensors_of(arguments_by_name(module, args, kwargs)):
        before = earlier.get(name)
        if before is None or not _fits(before, tensor) or not finite.any_nonfinite([tensor]):
            continue
        if finite.any_nonfinite([before]) or not any(_is_same(tensor, output) for output in given):
            continue
        with torch.no_grad():
            tensor.data.copy_(before)  # not counted as a write: a graph of the program may hold the tensor
        restored.append(name)
    return restored


def _fits(before: Tensor, now: Tensor) -> bool:
    """Whether a tensor can hold the values of another one, and neither belongs to a graph."""
    if not (finite.is_ordinary(before) and finite.is_ordinary(now)):
        return False
    alike = before.shape == now.shape and before.dtype == now.dtype and before.device == now.device
    return alike and now.is_floating_point() and not now.requires_grad and not share_memory(before, now)


def _is_same(state: Tensor, output: Tensor) -> bool:
    """Whether a tensor is an output of the model, a view of it, or a copy that does not only hold NaN."""
    if state.is_nested or output.is_nested or state.shape != output.shape or state.dtype != output.dtype:
        return False
    if share_memory(state, output):
        return True
    known = state.isfinite()
    return bool(state[known].any()) and torch.equal(state.nan_to_num(), output.detach().nan_to_num())
