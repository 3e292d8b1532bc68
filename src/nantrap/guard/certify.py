"""Can this update make non-finite values at all?

Copying parameters and optimizer state before each step, and reading both after it, would cost one to three percent
of a transformer step. For the optimizers everybody uses it can be decided beforehand. Let g be the clipped gradient,
finite with norm n, and let parameters and state be finite (seen once, and nobody but the optimizer wrote since).

    Adam, AdamW   m' = b1·m + (1-b1)·g, v' = b2·v + (1-b2)·g²  are finite while n² is;
                  |update| = lr·m̂/(√v̂ + eps) ≤ lr·|m̂|/eps       is finite while eps is not 0 in the state's dtype.
    SGD           momentum·buf + g is a bounded sum of bounded terms.
    weight decay  multiplies by 1 - lr·decay, which must not exceed 1 in magnitude: else weights grow for ever.
    RMSprop       as Adam without bias correction; centred it takes √(v - ḡ²), which rounding makes negative.
    Adagrad       the accumulator only grows; g/(√sum + eps) ≤ |g|/eps.

All of that holds in float32 and float64 with ordinary constants; nothing of it in half precision, where eps = 1e-8
is 0 and 0.999 is 1. What has no proof here is stepped carefully: copy, step, read, undo (see `snapshot`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

_SAFE_DTYPES = frozenset({torch.float32, torch.float64})
_LARGEST_NORM = 1e15
"""Squared, times 1e3 steps of a growing sum, still far below float32's 3.4e38."""


def update_is_provably_finite(optimizer: Optimizer) -> bool:
    """Whether a step on gradients below `norm_bound()` cannot create a non-finite value, given finite state."""
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False  # a hook may write anything
    prove = _PROOFS.get(type(optimizer))
    if prove is None:
        return False
    for group in optimizer.param_groups:
        if not all(parameter.dtype in _SAFE_DTYPES for parameter in group["params"]):
            return False
        rate = group["lr"]
        if isinstance(rate, torch.Tensor) or not 0 <= rate < 1e6 or not prove(group):
            return False
    return True


def norm_bound() -> float:
    """Up to this gradient norm the proofs hold."""
    return _LARGEST_NORM


def _ordinary_decay(group: dict[str, Any]) -> bool:
    decay = group.get("weight_decay", 0)
    return bool(0 <= decay < 1e3 and group["lr"] * decay <= 2)


def _adam(group: dict[str, Any]) -> bool:
    beta1, beta2 = group["betas"]
    if isinstance(beta1, torch.Tensor) or isinstance(beta2, torch.Tensor):
        return False
    return bool(1e-20 < group["eps"] < 1e6 and 0 <= beta1 < 1 and 0 <= beta2 < 1) and _ordinary_decay(group)


def _sgd(group: dict[str, Any]) -> bool:
    # fused with momentum: a skipped first step leaves uninitialised memory in the buffer (a hazard of PyTorch itself)
    return bool(0 <= group["momentum"] < 1 and abs(group["dampening"]) <= 1) and _ordinary_decay(group)


def _rmsprop(group: dict[str, Any]) -> bool:
    ordinary = 0 <= group["alpha"] < 1 and 0 <= group["momentum"] < 1
    return bool(ordinary and group["eps"] > 1e-20 and not group["centered"]) and _ordinary_decay(group)


def _adagrad(group: dict[str, Any]) -> bool:
    return bool(group["eps"] > 1e-20) and _ordinary_decay(group)


_PROOFS = {
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
    torch.optim.SGD: _sgd,
    torch.optim.RMSprop: _rmsprop,
    torch.optim.Adagrad: _adagrad,
}
