"""Single operations that a guard relies on, with kernels that differ from device to device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from nantrap import finite
from nantrap.doctor.selftest.training import DidNotHold, NotHere, fused_adamw
from nantrap.guard.sync import Arrival, why_no_arrival
from nantrap.guard.torch_private import restore_where
from nantrap.incident.wording import counted
from nantrap.locate import RngState

FUSED: Final[dict[str, Callable[[Any], torch.optim.Optimizer]]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "AdamW": fused_adamw,
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, fused=True),
}
"""Those whose kernel takes `found_inf`."""


def flags(device: torch.device) -> str:
    """The flag of a step, and that of any list of tensors."""
    for value, bad in ((1.0, False), (math.nan, True), (math.inf, True), (-math.inf, True)):
        values = torch.tensor([0.0, value, -3.0], device=device)
        if bool(finite.flag_of(values.clone())) is not bad:
            raise DidNotHold(f"the flag of {value} is not {float(bad)}")
        for dtype in (torch.float16, torch.bfloat16, torch.float32, *_float64(device)):
            if finite.any_nonfinite([values.to(dtype), torch.ones(20_000, dtype=dtype, device=device)]) is not bad:
                raise DidNotHold(f"the flag of {value} in {dtype} is not {bad}")
        norm = finite.gradient_norm([values, torch.ones(20_000, device=device)])
        if bool(norm.isfinite()) is bad:
            raise DidNotHold(f"a norm over {value} is {norm.item()}")
    return "NaN, Inf and -Inf are seen in every dtype, by flags and by norms"


def _float64(device: torch.device) -> tuple[torch.dtype, ...]:
    return () if device.type == "mps" else (torch.float64,)


def found_inf(device: torch.device) -> str:
    """Fused kernels: a flag of 1 changes nothing, one of 0 changes what it should."""
    done, refused = [], []
    for name, make in FUSED.items():
        left, right = (_parameters(device) for _ in range(2))
        try:
            plain, flagged = make(left), make(right)
        except (RuntimeError, TypeError, ValueError) as error:
            refused.append(f"{name} ({str(error).splitlines()[0][:60]})")
            continue
        for step in range(3):
            for parameters, bad in ((left, 0.0), (right, float(step == 1))):
                for parameter in parameters:
                    parameter.grad = torch.full_like(parameter, math.nan if bad else 0.1 + step)
            if step != 1:
                plain.step()
            flagged.found_inf, flagged.grad_scale = torch.tensor(float(step == 1), device=device), None  # type: ignore[attr-defined]
            flagged.step()
            del flagged.found_inf, flagged.grad_scale  # type: ignore[attr-defined]
        for a, b in zip(left, right, strict=True):
            if not torch.equal(a, b):
                raise DidNotHold(f"fused {name} with found_inf = 1 in the second of three steps changed its parameters")
            for key, value in plain.state[a].items():
                if isinstance(value, Tensor) and not torch.equal(value, flagged.state[b][key]):
                    raise DidNotHold(f"fused {name} with found_inf = 1 changed its state: {key}")
        done.append(name)
    if not done:
        raise NotHere(f"no fused optimizer here: {'; '.join(refused)}")
    return f"fused {', '.join(done)} leave parameters and state alone where the flag is 1" + (
        f"; not here: {'; '.join(refused)}" if refused else ""
    )


def _parameters(device: torch.device) -> list[nn.Parameter]:
    return [nn.Parameter(torch.linspace(-1, 1, size, device=device)) for size in (5, 300, 70_000)]


def restore(device: torch.device) -> str:
    """Older values come back where a flag is 1, and nothing moves where it is 0: in every dtype, of 900 tensors."""
    patterns = torch.tensor([0.0, -0.0, 1.5, -2.25, math.nan, math.inf, -math.inf, 1e-7])
    dtypes = (torch.float16, torch.bfloat16, torch.float32, *_float64(device))
    old = [patterns.to(device, dtype) for dtype in dtypes]
    old += [torch.arange(8, device=device), torch.tensor([True, False], device=device)]
    old += [torch.full((3,), float(i), device=device) for i in range(900)]
    new = [value.flip(0) if value.dtype == torch.bool else value + 1 for value in old]
    for flag, expected in ((0.0, new), (1.0, old)):
        targets = [value.clone() for value in new]
        restore_where(torch.tensor(flag, device=device), targets, old)
        for target, value in zip(targets, expected, strict=True):
            if target.cpu().view(torch.uint8).tolist() != value.cpu().view(torch.uint8).tolist():
                raise DidNotHold(
                    f"with the flag {flag:.0f}, values of {value.dtype} are not bit for bit as they should be"
                )
    return f"{len(old)} tensors of {len(dtypes) + 2} dtypes come back bit for bit, NaN and -0.0 included"


def late_values(device: torch.device) -> str:
    """A copy to pinned memory behind an event holds the values once the event was waited for."""
    if device.type == "cpu":
        raise NotHere("values of a CPU are here at once")
    if why := why_no_arrival(device):
        raise NotHere(why)
    work = torch.eye(512, device=device)
    for number in range(10):
        for _ in range(20):
            work = work @ work
        sent = Arrival.of(torch.full((4,), float(number), device=device) * work[0, 0])
        for _ in range(20):
            work = work @ work
        if (values := sent.read()) != [float(number)] * 4:
            raise DidNotHold(f"copy {number} behind a queue of work arrived as {values}")
    return "10 copies to pinned memory arrived behind their events, with work queued before and after"


def random_numbers(device: torch.device) -> str:
    """Random streams are taken and restored, on the host and on each device."""
    streams = RngState.capture()
    first = torch.rand(100, device=device), torch.rand(100), nn.functional.dropout(torch.ones(1000, device=device))
    streams.restore()
    again = torch.rand(100, device=device), torch.rand(100), nn.functional.dropout(torch.ones(1000, device=device))
    if not all(torch.equal(a, b) for a, b in zip(first, again, strict=True)):
        raise DidNotHold("random numbers after the streams were restored are others")
    devices = counted(len(streams.torch_devices), "device")
    who = f"the host and {devices} draw" if streams.torch_devices else "the host draws"
    return f"{who} the same numbers again"
