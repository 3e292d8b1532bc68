"""What the faults share: a head with open logits, a step with a far-out embedding, the remedy that is tried first."""

from __future__ import annotations

from nantrap_systems.system import Remedy, lower_rate_and_clip
from nantrap_systems.temi.data import Batch

OPEN_HEAD = {
    "norm_bottleneck": False,
    "init_std": 0.03,
    "teacher_temp": 0.04,
    "learning_rate": 2e-3,
    "schedule_steps": 60,
    "outliers": 0,
}
"""Without unit length in front of the last layer: logits grow with the embedding."""

FAR_STEP = 16
"""The step in which an embedding lies far out."""


def far_out(batch: Batch, step: int, *, times: float = 100.0) -> Batch:
    """In one step of the run an embedding is a hundred times as large as the others: its logits lie as far apart."""
    if step != FAR_STEP:
        return batch
    x = batch.x.clone()
    x[5] *= times
    return batch._replace(x=x)


def caution(rate: float, *, result: str = "Touches nothing of the fault.") -> Remedy:
    """What is usually tried first."""
    story = "A tenth of the learning rate, a tenth of the norm, half the batch."
    settings = {"learning_rate": rate, "clip_grad": 0.1, "batch_size": 64}
    return lower_rate_and_clip(settings, story=story, result=result)


CAUTION = caution(4e-4)
