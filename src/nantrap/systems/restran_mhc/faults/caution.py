"""What the faults share: half precision in miniature, and the remedy that everybody tries first."""

from __future__ import annotations

from nantrap.systems.system import Remedy

HALF = {"channels": 16, "batch_size": 8, "mixed_precision": "fp16"}
"""Half precision is slow on a CPU, so the model is smaller."""
UNSCALED = {**HALF, "loss_scaling": False}

CAUTION = Remedy(
    name="lower rate and clip",
    story="A tenth of the rate and a tenth of the norm.",
    result="Touches nothing of the fault.",
    settings={"learning_rate": 1e-3, "grad_clip": 0.1},
)
