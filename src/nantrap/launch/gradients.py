"""Backward and clipping: `torch.autograd.backward`, which `Tensor.backward` calls, and `clip_grad_norm_`."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from nantrap.launch.loops import Loops
from nantrap.launch.patches import Patches
from nantrap.launch.scalers import Scaled


def install(patches: Patches, loops: Loops, scaled: Scaled) -> None:
    """Report every backward pass and every clipping to the guards."""

    def backward(original: Any, tensors: Any, *args: Any, **kwargs: Any) -> None:
        loss = scaled.unscaled(tensors)
        run = functools.partial(original, tensors, *args, **kwargs)
        if loss is None or kwargs.get("inputs") is not None or loops.is_own_call():
            run()
            return
        loops.notice_backward(loss)
        loops.replicas.backward()
        for loop in loops.loops_below(loss):
            run = functools.partial(loop.backward, loss, run)
        run()

    def clip(original: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if loops.is_own_call():
            return original(parameters, *args, **kwargs)
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        loop = loops.loop_owning(given)
        if loop is not None and loop.keeps_bad_gradients and _on_host(given):
            norm = get_total_norm([p.grad for p in given if p.grad is not None], *_norm_options(*args, **kwargs))
            if not math.isfinite(norm.item()):
                loop.clipped(norm.detach())
                return norm  # clipping would turn Inf into NaN (Inf × 0) and hide what happened; no step follows
        # the guard handles a norm that is not finite: the step will not be made, whatever it was clipped to
        norm = original(given, *args, **({**kwargs, "error_if_nonfinite": False} if loop is not None else kwargs))
        if loop is not None and isinstance(norm, Tensor):
            loop.clipped(norm.detach())
        return norm

    get_total_norm = torch.nn.utils.get_total_norm
    patches.wrap(torch.autograd, "backward", backward)
    clip_module = torch.nn.utils.clip_grad
    patches.wrap(clip_module, "clip_grad_norm_", clip, compiled="plain")
    patches.put(torch.nn.utils, "clip_grad_norm_", clip_module.clip_grad_norm_)


def _norm_options(
    max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> tuple[float, bool, bool | None]:
    """The arguments of `get_total_norm` in a call of `clip_grad_norm_`."""
    return norm_type, False, foreach


def _on_host(parameters: list[Tensor]) -> bool:
    """Whether the norm can be read without waiting for a device, and is an ordinary tensor."""
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and (type(gradient) is not Tensor or not gradient.is_cpu):
            return False
    return True
