"""StabilityGuard (package `stabilityguard`): an optimizer that skips steps with non-finite or spiking gradients."""

from __future__ import annotations

from typing import Any

from zoo.running import Alarm, Run


class StabilityGuard:
    """The one line of its README, with the action that it shows there."""

    name = "stabilityguard"
    about = "`stabilityguard`, `GuardedOptimizer`"
    packages = ("stabilityguard",)
    preload = ("stabilityguard",)
    stops = False

    def train(self, run: Run) -> None:
        """Train to the end. The layer is read from the report that it writes of a spike."""
        from stabilityguard import GuardedOptimizer

        case = run.build()
        optimizer = GuardedOptimizer(case["optimizer"], case["model"], nan_action="skip", verbose=False)
        layers: list[str] = []
        names = {name for name, _ in case["model"].named_modules()}
        note = optimizer._spike_logger.log_spike

        def log_spike(report: Any) -> None:  # the only place at which it says which layer it was
            layers.append(report.snapshot.spike_layer or "")
            note(report)

        optimizer._spike_logger.log_spike = log_spike
        for batch in run.batches():
            run.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            if layers:
                layer = layers.pop()
                module = layer if layer in names else layer.rpartition(".")[0]
                run.alarm(Alarm(phase="backward", module=module or "loss"))


TOOLS = (StabilityGuard(),)
