"""ARC (package `arc-training`, AGPL): a controller that rolls back to a snapshot in memory and lowers the rate."""

from __future__ import annotations

from zoo.running import Alarm, Run


class Arc:
    """The loop of its README. Snapshots are copied in the foreground, so that a run repeats."""

    name = "arc"
    about = "`arc-training`, `Controller`"
    packages = ("arc-training",)
    preload = ("arc",)
    stops = False

    def train(self, run: Run) -> None:
        """Train to the end. A step that it skips, or in which it names a failure, is an alarm."""
        import arc

        case = run.build()
        optimizer = case["optimizer"]
        controller = arc.Controller(case["model"], optimizer, config=arc.ControllerConfig(async_checkpoint=False))
        for batch in run.batches():
            optimizer.zero_grad()
            loss = run.loss(batch)
            loss.backward()
            action = controller.step(loss)
            if action.failure_type is not None or action.should_skip:
                run.alarm(Alarm())
            if not action.should_skip:
                optimizer.step()


TOOLS = (Arc(),)
