"""Backward and clipping: `torch.autograd.backward`, which `Tensor.backward` calls, and `clip_grad_norm_`."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from nantrap.launch.loops import Loops
from nantrap.launch.patches import Patches
from nantrap.launch.scalers import Scaled


def install(patches: Patches, loops: Loops, scaled: Scaled) -> None:
    """Tell the guards of every backward pass and of every clipping."""

    def backward(original: Any, tensors: Any, *args: Any, **kwargs: Any) -> None:
        loss = scaled.unscaled(tensors)
        run = functools.partial(original, tensors, *args, **kwargs)
        if loss is None or kwargs.get("inputs") is not None or loops.looks_away():
            run()
            return
        for loop in loops.loops_below(loss):
            run = functools.partial(loop.backward, loss, run)
        run()

    def clip(original: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if loops.looks_away():
            return original(parameters, *args, **kwargs)
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        loop = loops.loop_owning(given)
        # a norm that is not finite is the guard's business: the step will not be taken, whatever it was clipped to
        norm = original(given, *args, **({**kwargs, "error_if_nonfinite": False} if loop is not None else kwargs))
        if loop is not None and isinstance(norm, Tensor):
            loop.clipped(norm.detach())
        return norm

    patches.wrap(torch.autograd, "backward", backward)
    clip_module = torch.nn.utils.clip_grad
    patches.wrap(clip_module, "clip_grad_norm_", clip)
    patches.put(torch.nn.utils, "clip_grad_norm_", clip_module.clip_grad_norm_)
