"""The learning rates in force, and how to lower them so that a scheduler does not restore them."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from nantrap.checkpoints.store.resume import scale_group
from nantrap.guard.torch_private import inner_schedulers


def current_rates(optimizer: Optimizer) -> tuple[float, ...]:
    """The learning rate of each parameter group that has one."""
    return tuple(float(group["lr"]) for group in optimizer.param_groups if "lr" in group)


def scale_rates(optimizer: Optimizer, scheduler: Any, factor: float) -> None:
    """Multiply every learning rate, also those from which the scheduler computes the next ones."""
    for group in optimizer.param_groups:
        scale_group(group, factor)
    scale_bases(scheduler, factor)


def scale_bases(scheduler: Any, factor: float) -> None:
    """Multiply the learning rates from which a scheduler, or one inside it, computes the next ones."""
    for inner in _schedulers(scheduler):
        if hasattr(inner, "base_lrs"):
            inner.base_lrs = [rate * factor for rate in inner.base_lrs]


def _schedulers(scheduler: Any) -> list[Any]:
    if scheduler is None:
        return []
    nested = inner_schedulers(scheduler)
    return [scheduler, *(s for inner in nested for s in _schedulers(inner))]
