"""The private names of PyTorch's schedulers that a resume relies on, and nothing else. Seen in torch 2.4 to 2.13."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer


def parts_of(scheduler: Any) -> list[Any] | None:
    """The schedulers inside a `SequentialLR` or `ChainedScheduler`; `None` for any other."""
    return getattr(scheduler, "_schedulers", None)


def set_parts(scheduler: Any, parts: Sequence[Any]) -> None:
    """Replace the schedulers inside."""
    scheduler._schedulers = list(parts)


def note_last_rates(scheduler: Any) -> None:
    """Let `get_last_lr()` give the learning rates that the optimizer has now."""
    if hasattr(scheduler, "_last_lr"):
        scheduler._last_lr = [group["lr"] for group in scheduler.optimizer.param_groups]


def mark_stepped(optimizer: Optimizer) -> None:
    """PyTorch warns when a schedule advances before the first optimizer step; here it is only asked for its values."""
    optimizer._opt_called = True  # type: ignore[attr-defined]
