"""Bad batches that the script handles itself: `if isnan(loss): continue`, a loss replaced by zeros, a head left out.

A script that handles a bad loss looks at it first. So each scalar with a graph that the script asks about (`isnan`,
`isfinite`, `.item()`, `.data`, `loss != loss`, ...) after a forward pass is kept until the backward pass. One that is
not finite and never gets a backward pass was abandoned by the script: that is an incident like any other, except that
the script skipped the batch.

Nothing is read here that the script did not read itself, until the script abandons a step.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from nantrap.launch.loops import Loops
from nantrap.launch.patches import Patches

_QUESTIONS = ("isnan", "isinf", "isfinite")
_ANSWERS = ("item", "__float__", "detach", "tolist", "__ne__")


def install(patches: Patches, loops: Loops) -> None:
    """Notice what the script tests, and when it begins something else."""
    asked = loops.asked

    def asking(original: Any) -> Any:
        """A function of one tensor that notes it first. These are called often, so each is a single function."""

        @functools.wraps(original)
        def ask(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():  # a traced tensor has no value yet
                return original(tensor, *args, **kwargs)
            if asked.open or loops.has_no_guard:
                look(tensor)
            return original(tensor, *args, **kwargs)

        return ask

    def look(tensor: Any) -> None:
        if not isinstance(tensor, Tensor) or not tensor.requires_grad or loops.is_own_call():
            return
        if asked.open:
            asked.note(tensor)
        else:
            loops.look(tensor)

    def replaced(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, Tensor) and not loops.is_own_call():
            if not tensor.requires_grad:
                loops.cleaned(tensor)
            elif asked.open:
                asked.note(tensor)
        return original(tensor, *args, **kwargs)

    def train(original: Any, self: Any, mode: bool = True) -> Any:
        if not mode and not loops.is_own_call():
            loops.settle()  # an evaluation follows: it must not see what a skipped batch left behind
        return original(self, mode)

    plain_data: Any = Tensor.data

    def get_data(tensor: Any) -> Any:
        if asked.open and not is_compiling():
            look(tensor)
        return plain_data.__get__(tensor)

    patches.put(Tensor, "data", property(get_data, plain_data.__set__, doc=plain_data.__doc__))
    for name in _QUESTIONS:
        patches.put(torch, name, asking(getattr(torch, name)))
    for name in (*_QUESTIONS, *_ANSWERS):
        patches.put(Tensor, name, asking(getattr(Tensor, name)))
    patches.wrap(torch, "nan_to_num", replaced, compiled="plain")
    patches.wrap(Tensor, "nan_to_num", replaced, compiled="plain")
    patches.wrap(torch.nn.Module, "train", train, compiled="plain")
