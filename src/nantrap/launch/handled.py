"""Bad data that the script replaces itself (`nan_to_num`), and when it begins an evaluation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nantrap.launch.loops import Loops
from nantrap.launch.patches import Patches


def install(patches: Patches, loops: Loops) -> None:
    """Notice what the script cleans, and when it begins something else."""
    asked = loops.asked

    def replaced(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, Tensor) and not loops.is_own_call():
            if not tensor.requires_grad:
                if not loops.test_gradient(tensor):
                    loops.clean(tensor)
            elif asked.open:
                asked.note(tensor)
        return original(tensor, *args, **kwargs)

    def train(original: Any, self: Any, mode: bool = True) -> Any:
        if not mode and not loops.is_own_call():
            loops.record_abandoned()  # an evaluation follows: it must not see what a skipped batch left behind
        return original(self, mode)

    for name in ("nan_to_num", "nan_to_num_"):
        patches.wrap(torch, name, replaced, compiled="plain")
        patches.wrap(Tensor, name, replaced, compiled="plain")
    patches.wrap(torch.nn.Module, "train", train, compiled="plain")
