"""What the faults share: the remedy that is usually tried first."""

from __future__ import annotations

from nantrap_systems.system import Remedy, lower_rate_and_clip


def caution(rate: float = 5e-4) -> Remedy:
    """A tenth of the learning rate and of the norm."""
    return lower_rate_and_clip({"optimizer.lr": rate, "optimizer.grad_clip_norm": 0.05})
