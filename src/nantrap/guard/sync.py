"""Whether the host may learn the result of a step one step later (`Policy(sync=...)`), and how its values arrive then.

On an accelerator the host runs ahead of the device, and a value that is read at once empties the queue. A late step
reads nothing: the optimizer skips on the device. That needs an optimizer which can skip there, an update that is
provably finite (nothing could undo it later), and a policy that can wait. Where one of these is missing, steps are read
at once, and `run.json` says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nantrap.guard.ranks.ranks import Ranks, is_sharded
from nantrap.guard.state.certify import certify
from nantrap.guard.state.protected import Protected, needs_closure

if TYPE_CHECKING:
    from nantrap.guard.policy import Policy
    from nantrap.guard.session import Setup


@dataclass(frozen=True, slots=True)
class Arrival:
    """Values in pinned memory, and the event behind which they are there."""

    values: Tensor
    event: torch.Event | None

    @classmethod
    def of(cls, values: Tensor) -> Arrival:
        """Send values of the device. On a CPU they are here."""
        if values.is_cpu:
            return cls(values, None)
        there = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
        there.copy_(values, non_blocking=True)
        event = torch.Event(values.device)
        event.record()
        return cls(there, event)

    def read(self) -> list[float]:
        """The values. What was launched after them need not have ended."""
        if self.event is not None:
            self.event.synchronize()
        return [float(value) for value in self.values.tolist()]


def why_no_arrival(device: torch.device) -> str:
    """Why values of a device cannot be sent in this way, in words; empty if they can."""
    try:
        Arrival.of(torch.zeros(1, device=device)).read()
    except (RuntimeError, NotImplementedError, TypeError) as error:
        return f"{device.type} cannot copy to pinned memory behind an event ({type(error).__name__})"
    return ""


_CAPABLE = (torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.SGD)


def why_at_once(protected: Protected, setup: Setup, ranks: Ranks) -> str:
    """Why each step is read before its update, in words; empty if it may be read one step later."""
    policy = setup.policy
    if policy.sync == "step":
        return 'Policy(sync="step")'
    devices = {parameter.device for parameter in protected.members.parameters}
    if policy.sync == "auto" and all(device.type == "cpu" for device in devices):
        return "the parameters are on the CPU, where nothing waits for a read"
    if len(devices) > 1:
        return "the parameters are on several devices"
    if setup.shards is not None:
        return "an engine makes the updates itself"
    if ranks.together and (why := ranks.why_not_late()):
        return why
    why = _by_policy(policy) or _by_optimizer(protected.optimizer) or _by_parts(protected, setup.ema)
    return why or why_no_arrival(next(iter(devices)))


def _by_policy(policy: Policy) -> str:
    """What the policy asks for that must be known before the update."""
    if policy.on_incident != "skip":
        return f'Policy(on_incident="{policy.on_incident}") must know of a bad step before its update'
    if policy.spikes.action == "skip":
        return 'Spikes(action="skip") must know loss and gradient norm before the update'
    if policy.batches.unusual != "off" or policy.batches.ranges or policy.batches.finite:
        return "BatchChecks read each batch before its step"
    if policy.bad_terms == "drop":
        return 'Policy(bad_terms="drop") must know the loss terms before the backward pass'
    if policy.rollback.undo == "always":
        return 'Rollback(undo="always") checks each update'
    if policy.diagnosis.armed == "always":
        return 'Diagnosis(armed="always") traces each step'
    return ""


def _by_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """What the optimizer lacks."""
    name = type(optimizer).__name__
    if needs_closure(optimizer):
        return f"{name} evaluates the loss several times"
    fused = all(group.get("fused") for group in optimizer.param_groups)
    if type(optimizer) not in _CAPABLE or not fused:
        return f"{name} cannot skip a step on the device here; Adam, AdamW, Adagrad and SGD can, with fused=True"
    if certify(optimizer) is None:
        return (
            f"the update of {name} cannot be proven finite beforehand (half precision parameters, a hook, a learning "
            "rate that is a tensor, or unusual constants)"
        )
    return ""


def _by_parts(protected: Protected, ema: Any) -> str:
    """What else takes part in a step and could not be restored on the device."""
    if ema is not None and not protected.averages:
        return "the ema is no module, so that it cannot be restored on the device"
    if is_sharded(protected.root):
        return "the parameters are sharded"
    return ""
