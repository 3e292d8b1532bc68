"""Forward and backward once more, without a trace: is the step finite?"""

from __future__ import annotations

import math
from typing import Any

import torch

from nantrap.finite import any_nonfinite, gradient_norm
from nantrap.locate.step import FailedStep, Part


def forward_and_backward(failed: FailedStep, batch: Any, *, seed: float | None = None, stop_early: bool = True) -> Part:
    """Run the step on a batch. Call it inside `failed.rewound()`.

    Args:
        failed: the failed step, which must be repeatable.
        batch: the batch.
        seed: what the loss is multiplied by, if not as in the failed step.
        stop_early: leave out the backward pass of a bad loss. Several ranks never do: each has its own loss.
    """
    assert failed.forward is not None
    if failed.rng is not None:
        failed.rng.restore()
    for parameter in failed.parameters.values():
        parameter.grad = None
    bad_before = {name for name, buffer in failed.root.named_buffers() if any_nonfinite([buffer])}
    loss = failed.forward(batch)
    value = float(loss.detach())
    if not math.isfinite(value) and (stop_early or not loss.requires_grad):
        return Part(False, value)
    factor = failed.loss_factor if seed is None else seed
    loss.backward(torch.full_like(loss, factor))
    gradients = {n: p.grad for n, p in failed.parameters.items() if p.grad is not None}
    bad = tuple(name for name, gradient in gradients.items() if any_nonfinite([gradient]))
    finite = math.isfinite(value) and not bad
    if finite and failed.norm_overflowed:
        finite = math.isfinite(float(gradient_norm(list(gradients.values()))))
    if finite:
        finite = not any_nonfinite([b for n, b in failed.root.named_buffers() if n not in bad_before])
    if finite:
        finite = not any_nonfinite(failed.parameters.values())  # a forward pass may write them
    return Part(finite, value, bad)
