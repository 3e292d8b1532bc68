"""torch's `DebugMode`, read as its documentation proposes: a hook notes of each operation whether it is finite."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from zoo.running import Alarm, Run


class DebugMode:
    """After a step whose loss or gradients are non-finite: the first operation that made a non-finite value.

    DebugMode records and decides nothing; whether inputs and outputs are finite is asked by this file.
    """

    name = "debug_mode"
    about = "`torch.utils._debug_mode.DebugMode` with an `isfinite` hook"
    packages = ("torch",)
    preload = ("torch._dynamo", "torch.distributed.tensor", "torch._inductor.lowering")
    stops = True

    def train(self, run: Run) -> None:
        """Train until the loss or a gradient is non-finite."""
        from torch.utils._debug_mode import DebugMode as Mode

        case = run.build()
        origins: list[tuple[str, str]] = []
        phase = [""]

        def note(func: Any, types: Any, args: Any, kwargs: Any, result: Any) -> dict[str, Any]:
            if not finite(result) and finite((args, kwargs)):
                origins.append((phase[0], str(func.overloadpacket)))
            return {}

        for batch in run.batches():
            origins.clear()
            with Mode(), Mode.dispatch_hooks(log_hook=note):
                phase[0] = "forward"
                loss = run.loss(batch)
                phase[0] = "backward"
                loss.backward()
            grads = [parameter.grad for parameter in case["model"].parameters()]
            if not finite((loss, grads)):
                run.alarm(Alarm(phase=origins[0][0], op=origins[0][1]) if origins else Alarm())
                return
            case["optimizer"].step()
            case["optimizer"].zero_grad()


def finite(tree: Any) -> bool:
    """Whether every floating-point tensor in it is finite."""
    floats = [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor) and t.is_floating_point()]
    return all(bool(t.isfinite().all()) for t in floats if t.element_size() > 1)


TOOLS = (DebugMode(),)
