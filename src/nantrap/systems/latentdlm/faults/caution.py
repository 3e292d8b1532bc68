"""What the faults share: the remedy that everybody tries first."""

from __future__ import annotations

from nantrap.systems.system import Remedy


def caution(rate: float = 5e-4) -> Remedy:
    """A tenth of the rate and of the norm."""
    return Remedy(
        name="lower rate and clip",
        story="A tenth of the rate and a tenth of the norm.",
        result="Touches nothing of the fault.",
        settings={"optimizer.lr": rate, "optimizer.grad_clip_norm": 0.05},
    )
