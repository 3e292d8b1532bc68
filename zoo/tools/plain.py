"""No tool: what a run pays and how it ends by itself."""

from __future__ import annotations

from zoo.running import Run, ScriptRun


class Plain:
    """The loop that everybody writes."""

    name = "plain"
    about = "the plain loop"
    stops = False

    def train(self, run: Run) -> None:
        """Train to the end, whatever happens."""
        optimizer = run.build()["optimizer"]
        for batch in run.batches():
            run.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()

    def run_script(self, run: ScriptRun) -> None:
        """The script as it is."""
        run.run()


TOOLS = (Plain(),)
