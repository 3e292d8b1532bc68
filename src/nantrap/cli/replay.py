"""`nantrap replay`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import TYPE_CHECKING

from nantrap.incident.wording import escaped
from nantrap.problems.terminal import Printer

if TYPE_CHECKING:
    from nantrap.guard.replaying import ReplayResult


class ReplayCommand:
    """Test a fix: run the failed step of an incident again with today's code.

    With --entry module:function the whole step is run; state, random streams and batch come from the bundle. The
    function takes the batch, or the model and the batch, and returns the loss; the model is a variable of its module.
    Or it takes nothing and returns (model, optimizer, loss_fn). Without --entry only the guilty operation is run, on
    its recorded inputs. Exit code 0: the failure is gone, what was run is finite here; 1: it is still there; 2: wrong
    use, or nothing could be run.
    """

    name = "replay"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("bundle", help="the folder of an incident, e.g. runs/exp1/incidents/001204-r0")
        parser.add_argument("--entry", metavar="MODULE:FUNCTION", help="the code to test: from the batch to the loss")
        parser.add_argument("--fp32", action="store_true", help="widen everything to float32")
        parser.add_argument("--device", default="cpu", help="where to run (default: cpu)")
        parser.add_argument("--json", action="store_true", help="the result as JSON on standard output")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run it."""
        from nantrap.guard.replaying import replay

        with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no part of the result
            result = replay(arguments.bundle, entry=arguments.entry, fp32=arguments.fp32, device=arguments.device)
        if arguments.json:
            document = {
                "schema": "nantrap.replay/1",
                "bundle": arguments.bundle,
                "mode": result.mode,
                "reproduced": result.reproduced,
                "sentence": result.sentence,
                "differences": list(result.differences),
                "incident": result.incident.to_dict() if result.incident else None,
            }
            print(json.dumps(document))
        else:
            _print(result)
        return 2 if result.reproduced is None else int(result.reproduced)


def _print(result: ReplayResult) -> None:
    """Print what was recorded, and whether the replay failed in the same way."""
    from nantrap.report import render_incident, wants_details

    printer = Printer(sys.stdout)
    recorded = result.recorded
    names = ", ".join(name for name in (recorded.phase, recorded.module, recorded.op) if name)
    printer.line(f"recorded: step {recorded.step:,}, {escaped(names)}")
    if result.reproduced is None:
        Printer(sys.stderr).line(("error", "bold red"), f": {escaped(result.sentence, most=1000)}")
        return
    if result.incident is not None:
        print(render_incident(result.incident, color=None, brief=not wants_details()))
        for difference in result.differences:
            printer.line(f"differs: {escaped(difference)}")
    if result.output is not None:
        printer.line(f"result: {result.output.describe()}")
    printer.line(escaped(result.sentence, most=1000))
