"""Bad batches that the script handles itself: `if isnan(loss): continue`, a loss replaced by zeros, a head left out.

A script that handles a bad loss looks at it first. So each scalar with a graph that the script asks about (`isnan`,
`isfinite`, `.item()`, ...) after a forward pass is kept until the backward pass. One that is not finite and never gets
a backward pass was given up by the script: that is an incident like any other, only that the script skipped the batch.

Nothing is read here that the script did not ask for, until the script gives something up.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nantrap.launch.loops import Loops
from nantrap.launch.patches import Patches

_QUESTIONS = ("isnan", "isinf", "isfinite")
_ANSWERS = ("item", "__float__", "detach")


def install(patches: Patches, loops: Loops) -> None:
    """Notice what the script asks, and when it turns to something else."""
    asked = loops.asked

    def question(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if asked.open and isinstance(tensor, Tensor) and tensor.requires_grad and not loops.looks_away():
            asked.note(tensor)
        return original(tensor, *args, **kwargs)

    def replaced(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, Tensor) and not loops.looks_away():
            if not tensor.requires_grad:
                loops.cleaned(tensor)
            elif asked.open:
                asked.note(tensor)
        return original(tensor, *args, **kwargs)

    def train(original: Any, self: Any, mode: bool = True) -> Any:
        if not mode and not loops.looks_away():
            loops.settle()  # an evaluation follows: it must not see what a skipped batch left behind
        return original(self, mode)

    for name in _QUESTIONS:
        patches.wrap(torch, name, question)
        patches.wrap(Tensor, name, question)
    for name in _ANSWERS:
        patches.wrap(Tensor, name, question)
    patches.wrap(torch, "nan_to_num", replaced)
    patches.wrap(Tensor, "nan_to_num", replaced)
    patches.wrap(torch.nn.Module, "train", train)
