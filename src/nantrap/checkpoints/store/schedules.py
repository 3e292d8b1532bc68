"""What a schedule will make of the learning rate: tried on a copy, so that the run is not changed.

Which restored state decides the learning rate depends on the scheduler. OneCycleLR computes it from `max_lr` in the
optimizer's groups, LambdaLR from its own `base_lrs`, CosineAnnealingLR from the learning rate in the group. Instead of
knowing them all, one number is changed on a copy and the next learning rate is compared.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from nantrap.checkpoints.torch_private import mark_stepped, note_last_rates, parts_of, set_parts

RATE_KEYS = ("lr", "initial_lr", "max_lr", "min_lr")
"""The learning rates in an optimizer's group; all of them scale together."""


def inner_schedulers(scheduler: Any) -> list[Any]:
    """The scheduler and those it is made of (SequentialLR, ChainedScheduler)."""
    if scheduler is None:
        return []
    return [scheduler, *(s for inner in parts_of(scheduler) or [] for s in inner_schedulers(inner))]


def peak_key(group: dict[str, Any], scheduler: Any) -> str:
    """The key of the group that holds what a configuration calls the learning rate."""
    if "max_lr" in group and any(isinstance(s, OneCycleLR) for s in inner_schedulers(scheduler)):
        return "max_lr"
    return "initial_lr" if scheduler is not None and "initial_lr" in group else "lr"


def base_rates(scheduler: Any) -> list[float]:
    """The `base_lrs` of a schedule that has its own, one for each group; OneCycleLR does not use them."""
    for inner in inner_schedulers(scheduler):
        if not isinstance(inner, OneCycleLR) and getattr(inner, "base_lrs", None):
            return [float(rate) for rate in inner.base_lrs]
    return []


def next_rates(
    optimizer: Optimizer, scheduler: Any, *, groups: Sequence[float] | None = None, bases: Sequence[float] | None = None
) -> list[float] | None:
    """The learning rate of each group after the next step of the schedule, or `None` if a copy of it does not run.

    Args:
        optimizer: as it is now.
        scheduler: as it is now.
        groups: multiply the learning rates in each group of the copy by this first.
        bases: multiply the `base_lrs` of the copy by this first.
    """
    count = len(optimizer.param_groups)
    stub = _stub(optimizer, groups or [1.0] * count)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _copied(scheduler, stub, bases or [1.0] * count).step()
    except Exception:  # a scheduler of the user: it may need anything
        return None
    return [float(group["lr"]) for group in stub.param_groups]


def scale_group(group: dict[str, Any], factor: float) -> None:
    """Multiply every learning rate of a group."""
    for key in RATE_KEYS:
        if isinstance(group.get(key), Tensor):
            group[key].mul_(factor)
        elif isinstance(group.get(key), (int, float)):
            group[key] *= factor


def scale_bases(scheduler: Any, factors: Sequence[float]) -> None:
    """Multiply every `base_lrs`, also those of inner schedules, and note the current learning rates."""
    for inner in inner_schedulers(scheduler):
        if getattr(inner, "base_lrs", None):
            inner.base_lrs = [rate * factor for rate, factor in zip(inner.base_lrs, factors, strict=True)]
        note_last_rates(inner)


def _stub(optimizer: Optimizer, factors: Sequence[float]) -> Optimizer:
    """An optimizer with the same groups and one number to each."""
    stub = SGD([{"params": [torch.zeros(1)]} for _ in optimizer.param_groups], lr=1.0)
    for mine, group, factor in zip(stub.param_groups, optimizer.param_groups, factors, strict=True):
        mine.update({key: copy.deepcopy(value) for key, value in group.items() if key not in ("params", "param_names")})
        scale_group(mine, factor)
    mark_stepped(stub)
    return stub


def _copied(scheduler: Any, stub: Optimizer, factors: Sequence[float]) -> Any:
    clone = copy.copy(scheduler)
    clone.optimizer = stub
    if getattr(clone, "base_lrs", None):
        clone.base_lrs = [rate * factor for rate, factor in zip(clone.base_lrs, factors, strict=True)]
    if (parts := parts_of(clone)) is not None:
        set_parts(clone, [_copied(inner, stub, factors) for inner in parts])
    return clone
