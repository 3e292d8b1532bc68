"""`torch.autograd.detect_anomaly`: raises when a backward function returns NaN, and prints the forward call."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from zoo.running import Alarm, Run, ScriptRun

_NODE = re.compile(r"Function '(\w+)' returned nan values")


class AnomalyMode:
    """The forward line is the innermost one of the printed traceback that is in the program's file.

    It names the node whose forward call is to blame, so the phase is left open.
    """

    name = "anomaly_mode"
    about = "`torch.autograd.detect_anomaly`"
    packages = ("torch",)
    stops = True

    def train(self, run: Run) -> None:
        """Train until a backward pass raises."""
        optimizer = run.build()["optimizer"]
        with anomalies_reported(run, run.path), torch.autograd.set_detect_anomaly(True):
            for batch in run.batches():
                run.loss(batch).backward()
                optimizer.step()
                optimizer.zero_grad()

    def run_script(self, run: ScriptRun) -> None:
        """Run the script until a backward pass raises."""
        with anomalies_reported(run, run.script), torch.autograd.set_detect_anomaly(True):
            run.run()


@contextlib.contextmanager
def anomalies_reported(run: Run | ScriptRun, file: Path) -> Iterator[None]:
    """An alarm for the error of a backward pass: its node, and the line of a file from the traceback in a warning."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            yield
        except RuntimeError as error:
            found = _NODE.search(str(error))
            if found is None:
                raise
            text = "\n".join(str(warning.message) for warning in said)
            lines = re.findall(rf'File "{re.escape(str(file))}", line \d+, in .*\n +(.*)', text)
            run.alarm(Alarm(node=found[1], line=lines[-1] if lines else None))


TOOLS = (AnomalyMode(),)
