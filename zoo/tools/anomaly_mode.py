"""`torch.autograd.detect_anomaly`: raises when a backward function returns NaN, and prints the forward call."""

from __future__ import annotations

import re
import warnings

import torch

from zoo.running import Alarm, Run

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
        with warnings.catch_warnings(record=True) as said, torch.autograd.set_detect_anomaly(True):
            warnings.simplefilter("always")
            for batch in run.batches():
                loss = run.loss(batch)
                try:
                    loss.backward()
                except RuntimeError as error:
                    run.alarm(alarm_of(run, str(error), [str(warning.message) for warning in said]))
                    return
                optimizer.step()
                optimizer.zero_grad()


def alarm_of(run: Run, error: str, said: list[str]) -> Alarm:
    """The node of the error, and the line of the forward call from the traceback in a warning; or the error again."""
    found = _NODE.search(error)
    if found is None:
        raise RuntimeError(error)
    lines = re.findall(rf'File "{re.escape(str(run.path))}", line \d+, in .*\n +(.*)', "\n".join(said))
    return Alarm(node=found[1], line=lines[-1] if lines else None)


TOOLS = (AnomalyMode(),)
