"""What a guard costs on this device: memory and time. Numbers to look at; they do not fail."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from typing import Any, Final

import torch
from torch import nn

from nantrap.doctor.selftest.training import FIRST, NotHere, fused_adamw
from nantrap.guard import Guard, Policy

_ROUNDS: Final = 10


def memory(device: torch.device) -> str:
    """Bytes of the device: the plain loop, a guarded one, and one that is diagnosed."""
    module = torch.get_device_module(device) if device.type != "cpu" else None
    if not hasattr(module, "max_memory_allocated"):
        raise NotHere(f"the memory of {device.type} is not counted")
    plain = _peak(device, guarded=False, bad=False)
    healthy, diagnosed = (_peak(device, guarded=True, bad=bad) for bad in (False, True))
    size = 2**20
    return (
        f"peak {plain / size:.1f} MiB plain, {healthy / size:.1f} MiB guarded, "
        f"{diagnosed / size:.1f} MiB with a diagnosis"
    )


def _peak(device: torch.device, *, guarded: bool, bad: bool) -> int:
    """The most memory that steps of a larger model took."""
    module: Any = torch.get_device_module(device)
    before = module.memory_allocated(device)
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).to(device)
    optimizer = fused_adamw(model.parameters())
    x = torch.randn(256, 512, device=device)
    with Guard(model, optimizer, policy=Policy(), quiet=True) if guarded else contextlib.nullcontext() as guard:
        module.reset_peak_memory_stats(device)
        for step in range(FIRST + 3):
            batch = x * math.nan if bad and step == FIRST else x
            if guard is not None:
                guard.attempt(lambda given: model(given).square().mean(), batch)
                continue
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return int(module.max_memory_allocated(device) - before)


def cost(device: torch.device) -> str:
    """Measured by the clock of this machine, in turns. A number to look at: it does not fail."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(20))).to(device)
    optimizer = fused_adamw(model.parameters())
    x = torch.randn(64, 256, device=device)

    def plain() -> None:
        model(x).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    times: dict[bool, list[float]] = {False: [], True: []}
    with Guard(model, optimizer, max_grad_norm=1.0, quiet=True) as guard:

        def guarded() -> None:
            guard.attempt(lambda batch: model(batch).square().mean(), x)

        for number in range(_ROUNDS + 2):
            for step in (plain, guarded):
                _finish(device)
                begin = time.perf_counter()
                for _ in range(5):
                    step()
                _finish(device)
                if number >= 2:  # the first ones are read at once
                    times[step is guarded].append((time.perf_counter() - begin) / 5)
    before, after = (1e3 * statistics.median(times[guarded]) for guarded in (False, True))
    return f"{before:.3g} ms a plain step, {after:.3g} ms guarded ({after / before - 1:+.1%}), 40 tensors, batch of 64"


def _finish(device: torch.device) -> None:
    """Wait for everything that was queued."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
