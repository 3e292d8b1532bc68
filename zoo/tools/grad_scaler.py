"""`torch.amp.GradScaler` with its defaults, as scripts in float16 use it: a step with an Inf gradient is skipped."""

from __future__ import annotations

import torch

from zoo.running import Alarm, Run


class GradScaler:
    """A scale that falls says that the step was skipped. It names nothing, and every program is run with it."""

    name = "grad_scaler"
    about = "`torch.amp.GradScaler`"
    packages = ("torch",)
    stops = False

    def train(self, run: Run) -> None:
        """Train to the end."""
        optimizer = run.build()["optimizer"]
        scaler = torch.amp.GradScaler("cpu")
        for batch in run.batches():
            scaler.scale(run.loss(batch)).backward()
            scaler.step(optimizer)
            before = scaler.get_scale()
            scaler.update()
            if scaler.get_scale() < before:
                run.alarm(Alarm())
            optimizer.zero_grad()


TOOLS = (GradScaler(),)
