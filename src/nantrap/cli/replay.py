"""`nantrap replay`."""

from __future__ import annotations

import argparse
import json
import sys

from nantrap.incident.wording import escaped


class Replay:
    """Run the failed step of an incident again from its bundle, and compare.

    Without --entry only the guilty operation is run, on its recorded inputs. With --entry module:function the whole
    step is: the function returns (model, optimizer, loss_fn), and state, random streams and batch come from the bundle.
    Exit code 0: the failure came again (or nothing could be run); 1: it did not, or differs; 2: wrong use.
    """

    name = "replay"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("bundle", help="the folder of an incident, e.g. runs/exp1/incidents/001204-r0")
        parser.add_argument("--entry", metavar="MODULE:FUNCTION", help="builds (model, optimizer, loss_fn)")
        parser.add_argument("--fp32", action="store_true", help="widen everything to float32")
        parser.add_argument("--device", default="cpu", help="where to run (default: cpu)")
        parser.add_argument("--json", action="store_true", help="the result as JSON on standard output")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run it."""
        from nantrap.guard.replaying import replay
        from nantrap.report import render_incident

        result = replay(arguments.bundle, entry=arguments.entry, fp32=arguments.fp32, device=arguments.device)
        recorded = result.recorded
        if arguments.json:
            document = {
                "schema": "nantrap.replay/1",
                "bundle": arguments.bundle,
                "mode": result.mode,
                "reproduced": result.reproduced,
                "differences": list(result.differences),
                "incident": result.incident.to_dict() if result.incident else None,
            }
            print(json.dumps(document))
        else:
            names = escaped(f"{recorded.phase}, {recorded.module}, {recorded.op}")
            print(f"recorded: step {recorded.step:,}, {names}")
            if result.mode == "none":
                print(f"not run: {escaped(result.differences[0])}", file=sys.stderr)
            elif result.reproduced:
                print("the failure came again" + ("" if result.differences else ", exactly as recorded"))
            else:
                print("the failure did not come again")
            for difference in result.differences if result.mode != "none" else ():
                print(f"  {escaped(difference)}")
            if result.output is not None:
                print(f"  result: {result.output.describe()}")
            if result.incident is not None:
                print(render_incident(result.incident, color=None))
        if result.reproduced is None:
            return 0
        return 0 if result.reproduced and not result.differences else 1
