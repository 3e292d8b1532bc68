"""`transformers.debug_utils.DebugUnderflowOverflow`: hooks that print the last 21 modules, and raise."""

from __future__ import annotations

import contextlib
import io
import re

from zoo.running import Alarm, Run

_MODULE = re.compile(r"^ {17} (\S*) \w+$", re.MULTILINE)


class DebugUnderflowOverflow:
    """The place is the module of the last printed frame."""

    name = "debug_underflow_overflow"
    about = "`transformers` `DebugUnderflowOverflow`"
    packages = ("transformers",)
    preload = ("transformers.debug_utils", "torch._dynamo")
    stops = True

    def train(self, run: Run) -> None:
        """Train until a hook raises."""
        from transformers.debug_utils import DebugUnderflowOverflow as Hooks

        case = run.build()
        Hooks(case["model"])
        for batch in run.batches():
            with contextlib.redirect_stdout(io.StringIO()) as said:
                try:
                    loss = run.loss(batch)
                except ValueError as error:
                    if "inf/nan detected" not in str(error):
                        raise
                    names = _MODULE.findall(said.getvalue())
                    run.alarm(Alarm(phase="forward", module=(names[-1] if names else "") or "loss"))
                    return
            loss.backward()
            case["optimizer"].step()
            case["optimizer"].zero_grad()


TOOLS = (DebugUnderflowOverflow(),)
