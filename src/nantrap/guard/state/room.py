"""Whether an accelerator has memory to spare for a copy that the run does not need."""

from __future__ import annotations

import torch

_SPARE = 1 / 20
"""The share of the device's memory that stays free beside a copy and beside the most that a step has needed so far."""
_SPARE_BEFORE = 1 / 2
"""The same while no step was made, so that what a step needs is not known."""


def has_room(device: torch.device, nbytes: int, *, known: bool = True) -> bool:
    """Whether so many bytes can be kept on a device without taking them from the run.

    Args:
        device: where; on a CPU, and where PyTorch cannot tell, the answer is yes.
        nbytes: the size of the copy.
        known: a step was made already, so that the peak of the allocator says what the run needs.
    """
    if device.type in ("cpu", "meta"):
        return True
    module = torch.get_device_module(device)
    ask = getattr(torch.accelerator, "get_memory_info", None) or getattr(module, "mem_get_info", None)
    if ask is None or not hasattr(module, "max_memory_allocated"):
        return True
    try:
        free, total = ask(device)
        cached = (
            module.memory_reserved(device) if hasattr(module, "memory_reserved") else module.memory_allocated(device)
        )
        never_used = free + cached - module.max_memory_allocated(device)
    except (RuntimeError, NotImplementedError):
        return True
    return bool(never_used - nbytes >= total * (_SPARE if known else _SPARE_BEFORE))
