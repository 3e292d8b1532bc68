"""Can this update make non-finite values at all?

Copying parameters and optimizer state before each step, and reading both after it, would cost one to three percent
of a transformer step. For the common optimizers it can be decided beforehand. Let g be the clipped gradient,
finite with norm n, and let parameters and state be finite (checked once, and written only by the optimizer since).

    Adam, AdamW   m' = b1·m + (1-b1)·g, v' = b2·v + (1-b2)·g²  are finite while n² is;
                  |update| = lr·m̂/(√v̂ + eps) ≤ lr·|m̂|/eps       is finite while eps is not 0 in the state's dtype.
    SGD           momentum·buf + g is a bounded sum of bounded terms.
    weight decay  multiplies by 1 - lr·decay, which must not exceed 1 in magnitude, or weights grow without limit.
    RMSprop       as Adam without bias correction; centred it takes √(v - ḡ²), which rounding makes negative.
    Adagrad       the accumulator only grows; g/(√sum + eps) ≤ |g|/eps.

All of that holds in float32 and float64 with ordinary constants. None of it holds in half precision, where eps = 1e-8
is 0 and 0.999 is 1. An update without a proof here is made carefully: copy, step, read, undo (see `protected`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch.optim import Optimizer

from nantrap.guard.torch_private import step_hooks_of

_SAFE_DTYPES = frozenset({torch.float32, torch.float64})
LARGEST_NORM = 1e15
"""Up to this gradient norm the proofs hold: squared, times 1e3 steps of a growing sum, it is far below 3.4e38."""
_LARGEST_RATE = 1e6
_LARGEST_SHRINKAGE = 2.0
"""Weight decay multiplies weights by 1 - lr·decay, which must not exceed 1 in magnitude."""
_CONSTANTS = ("betas", "eps", "weight_decay", "momentum", "dampening", "alpha", "centered", "lr_decay")


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Of one parameter group: up to which learning rate the proof holds, and the constants it was made for.

    Attributes:
        largest_rate: the proof holds up to this learning rate.
        constants_of: takes the constants from a group.
        constants: as they were.
    """

    largest_rate: float
    constants_of: Callable[[dict[str, Any]], Any]
    constants: Any


@dataclass(frozen=True, slots=True)
class Certificate:
    """The proof that no update can create a non-finite value, while gradients stay below `LARGEST_NORM`.

    It holds for finite parameters and state, without hooks around the optimizer's step, and for learning rates and
    constants as in the parameter groups.
    """

    groups: tuple[GroupLimits, ...]


def certify(optimizer: Optimizer) -> Certificate | None:
    """The certificate of an optimizer as it is now, or `None` if there is no proof for it."""
    before, after = step_hooks_of(optimizer)
    prove = _PROOFS.get(type(optimizer))
    if before or after or prove is None:  # a hook may write anything
        return None
    limits: list[GroupLimits] = []
    for group in optimizer.param_groups:
        if not all(parameter.dtype in _SAFE_DTYPES for parameter in group["params"]):
            return None
        rate = group["lr"]
        if isinstance(rate, torch.Tensor) or not 0 <= rate < _LARGEST_RATE or not prove(group):
            return None
        decay = group.get("weight_decay", 0)
        largest = min(_LARGEST_RATE, _LARGEST_SHRINKAGE / decay) if decay else _LARGEST_RATE
        constants_of = itemgetter(*(key for key in _CONSTANTS if key in group))
        limits.append(GroupLimits(largest, constants_of, constants_of(group)))
    return Certificate(tuple(limits))


def _ordinary_decay(group: dict[str, Any]) -> bool:
    decay = group.get("weight_decay", 0)
    return bool(0 <= decay < 1e3 and group["lr"] * decay <= _LARGEST_SHRINKAGE)


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
