"""The guard: detects by one flag a step, contains, acts, records."""

from nantrap.guard.guard import Guard
from nantrap.guard.outcome import Outcome
from nantrap.guard.policy import Policy
from nantrap.guard.replaying import ReplayResult, replay
from nantrap.guard.watch import Limit

__all__ = ["Guard", "Limit", "Outcome", "Policy", "ReplayResult", "replay"]
