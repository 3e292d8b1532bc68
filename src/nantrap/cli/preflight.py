"""`nantrap preflight`: test a model before its first real step."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from typing import TYPE_CHECKING

from nantrap.incident.wording import counted, escaped
from nantrap.problems.progress import ProgressBar
from nantrap.problems.terminal import STYLES, Printer, wrapped

if TYPE_CHECKING:
    from nantrap.doctor.preflight import PreflightCheck, PreflightReport

_INDENT = 30
_CHECKS = 26
"""How many checks a whole preflight makes."""


class PreflightCommand:
    """Test a model before its first real step: initialisation, gradients, precision, edge inputs, margins, guard.

    MODULE:FACTORY is a function without arguments that returns a dict with model, optimizer, batch and loss (a
    function of model and batch), or a torch module. It is imported and run: that is your own code. Only copies are
    trained, and nothing is written outside of a temporary folder. Exit code 0: no check failed; 1: a check failed;
    2: wrong use.
    """

    name = "preflight"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """The arguments of `nantrap preflight`."""
        parser.add_argument("factory", metavar="MODULE:FACTORY", help="train:make_everything")
        parser.add_argument("--json", action="store_true", help="print the report as JSON on stdout")
        parser.add_argument("--strict", action="store_true", help="warnings fail too")
        parser.add_argument(
            "--ranks",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="try a fault on one of two processes that average their gradients",
        )
        parser.add_argument(
            "--compile",
            nargs="?",
            const="inductor",
            metavar="BACKEND",
            help="make the step compiled as well (inductor, aot_eager, eager), and compare loss and gradients with the "
            "eager ones",
        )
        parser.add_argument("--verbose", action="store_true", help="show checks that do not apply, too")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run all checks, each printed when it is done; 1 if one failed."""
        from nantrap.errors import UsageError

        if ":" not in arguments.factory:
            raise UsageError(f"{arguments.factory} names no factory; write module:function, for example train:make")
        from nantrap.doctor.preflight import preflight

        remark = Printer(sys.stderr)
        remark.line(("note", "bold cyan"), f": {escaped(arguments.factory)} is imported and run: your own code")
        made = 0
        with ProgressBar(sys.stderr, after=0.0) as bar:
            bar.show_checks(made, _CHECKS)

            def say(check: PreflightCheck) -> None:
                nonlocal made
                if check.status != "skip" or arguments.verbose or check.name == "default":
                    # a printer made now writes above the bar, which has replaced the streams
                    say_check(Printer(sys.stderr if arguments.json else sys.stdout), check, remark.width)
                    sys.stdout.flush()
                made += check.name != "default"  # a note about a default is no check
                bar.show_checks(made, _CHECKS)

            report = preflight(arguments.factory, ranks=arguments.ranks, compiled=arguments.compile, on_check=say)
        say_summary(Printer(sys.stderr if arguments.json else sys.stdout), report)
        if arguments.json:
            print(json.dumps(report.to_dict(), indent=2, allow_nan=False))
        return 1 if report.failures or (arguments.strict and report.warnings) else 0


def say_summary(printer: Printer, report: PreflightReport) -> None:
    """Print what was tested and how many checks went how."""
    counts = Counter(check.status for check in report.checks)
    summary = (
        f"{report.summary}: {counts['ok']} ok, {counted(counts['warn'], 'warning')}, {counts['fail']} failed, "
        f"{counts['skip']} not applicable, {report.seconds:.1f} s"
    )
    for line in wrapped(summary, printer.width):
        printer.line(line)


def say_check(printer: Printer, check: PreflightCheck, columns: int) -> None:
    """Print a check with its message and its help, wrapped at the terminal's width."""
    width = max(60, min(columns, 100)) - _INDENT
    lines = [escaped(line) for line in wrapped(check.message, width)]
    printer.line((f"{check.status:<5}", STYLES[check.severity]), (f"{check.name:<25}", "bold"), lines[0])
    for line in lines[1:]:
        printer.line(" " * _INDENT + line)
    if check.help and check.status in ("warn", "fail"):
        for line in wrapped(f"help: {check.help}", width):
            printer.line(" " * _INDENT + escaped(line))
