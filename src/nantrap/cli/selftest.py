"""`nantrap selftest`: try nantrap itself on the device that is here."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from nantrap.cli.preflight import say_check, say_summary
from nantrap.problems.terminal import Printer

if TYPE_CHECKING:
    from nantrap.doctor.preflight import PreflightCheck


class SelftestCommand:
    """Try nantrap itself on your device, in two minutes at most: what only a GPU has, and what differs between devices.

    Small runs are made with and without a guard and compared bit for bit: fused optimizers, GradScaler, autocast,
    streams, graphs, compiled models, several processes, late reads, rollback. Nothing of yours is read. If a check
    fails, please send the table with the last line to the project. Exit code 0: no check failed; 1: a check failed;
    2: wrong use.
    """

    name = "selftest"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """The arguments of `nantrap selftest`."""
        parser.add_argument(
            "--device", metavar="DEVICE", help="cuda, cuda:1, cpu, mps, xpu (default: the accelerator that is here)"
        )
        parser.add_argument(
            "--only", nargs="+", default=(), metavar="CHECK", help="only checks whose names begin with one of these"
        )
        parser.add_argument(
            "--json", action="store_true", help="print the report as JSON on stdout, the table on stderr"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Make all checks, each printed when it is done; 1 if one failed."""
        from nantrap.doctor.selftest import selftest

        printer = Printer(sys.stderr if arguments.json else sys.stdout)

        def say(check: PreflightCheck) -> None:
            say_check(printer, check, printer.width)
            sys.stdout.flush()

        report = selftest(arguments.device, only=arguments.only, on_check=say)
        say_summary(printer, report)
        if arguments.json:
            print(json.dumps(report.to_dict(), indent=2, allow_nan=False))
        return 1 if report.failures else 0
