"""Values on their way from the device to the host, which waits for them alone and not for the whole queue."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
