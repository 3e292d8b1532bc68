"""The guard: detects a bad step by one flag per step, contains it, acts and records. README.md says where to begin."""

from nantrap.guard.guard import Guard
from nantrap.guard.policy import (
    Accumulation,
    BatchChecks,
    Bundle,
    Diagnosis,
    Policy,
    Rollback,
    Sampling,
    Skips,
    Spikes,
)
from nantrap.guard.replaying import ReplayResult, replay
from nantrap.guard.watching.watch import Limit
from nantrap.guard.window import Outcome

__all__ = [
    "Accumulation",
    "BatchChecks",
    "Bundle",
    "Diagnosis",
    "Guard",
    "Limit",
    "Outcome",
    "Policy",
    "ReplayResult",
    "Rollback",
    "Sampling",
    "Skips",
    "Spikes",
    "replay",
]
