"""What the faults share: half precision in miniature, and the remedy that is usually tried first."""

from __future__ import annotations

from nantrap_systems.system import lower_rate_and_clip

HALF = {"channels": 16, "batch_size": 8, "mixed_precision": "fp16"}
"""Half precision is slow on a CPU, so the model is smaller."""
UNSCALED = {**HALF, "loss_scaling": False}

CAUTION = lower_rate_and_clip({"learning_rate": 1e-3, "grad_clip": 0.1})
