"""The guard: detects a bad step by one flag per step, contains it, acts and records.

guard        `Guard`, the facade; arguments checks what it is given; session holds what steps need
step         the order of a step: begin here; refusal is the end of a bad one
             late, closure, exceptions, batch_check: other ways to make a step, or to end one early
collect      what a step is made of: window, loss, micro_batches, heads
reading      what is read of a step; judge, driver: what is decided, and what makes the update
observation  what was seen of a bad step; diagnosed, known: its incident while it is made; ladder: what to do about it
recorder     journal, messages, bundles: bundling, messages, ending, no_gradient
replaying    `nantrap.replay`

state/       what a step may change: copied, put back, rolled back
ranks/       the ranks that train one model, and decide together
watching/    what is followed while the run is healthy
diagnosis/   where a bad step began, and why
"""

from nantrap.guard.guard import Guard
from nantrap.guard.outcome import Outcome
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
