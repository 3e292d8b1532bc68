"""The guard: detects a bad step by one flag per step, contains it, acts and records."""

from nantrap.guard.guard import Guard
from nantrap.guard.outcome import Outcome
from nantrap.guard.policy import Policy
from nantrap.guard.replaying import ReplayResult, replay
from nantrap.guard.watching.watch import Limit

__all__ = ["Guard", "Limit", "Outcome", "Policy", "ReplayResult", "replay"]
