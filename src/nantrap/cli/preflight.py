"""`nantrap preflight`: test a model before its first real step."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from nantrap.incident.wording import counted, escaped

if TYPE_CHECKING:
    from nantrap.doctor.preflight import Check

_STYLES = {"ok": "bold green", "warn": "bold yellow", "fail": "bold red", "skip": "dim"}
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
        parser.add_argument("--verbose", action="store_true", help="show checks that do not apply, too")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run all checks, each printed when it is done; 1 if one failed."""
        from nantrap.errors import UsageError

        if ":" not in arguments.factory:
            raise UsageError(f"{arguments.factory} names no factory; write module:function, for example train:make")
        from nantrap.doctor.preflight import preflight

        console = Console(stderr=True, highlight=False)
        console.print(f"preflight of {escaped(arguments.factory)} (your own code is run)", soft_wrap=True)

        with _Bar(console) as bar:

            def say(check: Check) -> None:
                if check.status != "skip" or arguments.verbose or check.name == "default":
                    _say(console, check)
                bar.advance(check.name)

            report = preflight(arguments.factory, ranks=arguments.ranks, on_check=say)
        counts = {status: sum(check.status == status for check in report.checks) for status in _STYLES}
        console.print(
            f"{report.summary}: {counts['ok']} ok, {counted(counts['warn'], 'warning')}, "
            f"{counts['fail']} failed, "
            f"{counts['skip']} not applicable, {report.seconds:.1f} s"
        )
        if arguments.json:
            json.dump(report.to_dict(), sys.stdout, indent=2, allow_nan=False)
            print()
        return 1 if report.failures or (arguments.strict and counts["warn"]) else 0


class _Bar:
    """A line below the checks, on a terminal only: how many are made, and for how long. Holds rich's progress bar."""

    def __init__(self, console: Console) -> None:
        columns = (SpinnerColumn(), BarColumn(20), MofNCompleteColumn(), TextColumn("checks"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("", total=_CHECKS)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, name: str) -> None:
        """One check more; a note about a default is none."""
        if name != "default":
            self._progress.advance(self._task)


def _say(console: Console, check: Check) -> None:
    """Print a check with its message and its help, wrapped at the terminal's width."""
    width = max(60, min(console.width, 100)) - _INDENT
    lines = [escaped(line) for line in textwrap.wrap(check.message, width)] or [""]
    console.print(
        Text.assemble((f"{check.status:<5}", _STYLES[check.status]), (f"{check.name:<25}", "bold"), lines[0]),
        soft_wrap=True,
    )
    for line in lines[1:]:
        console.print(" " * _INDENT + line, soft_wrap=True)
    if check.help and check.status in ("warn", "fail"):
        for number, line in enumerate(textwrap.wrap(f"help: {check.help}", width)):
            shown = Text(escaped(line), style="cyan" if number == 0 and line == "help:" else "")
            console.print(" " * _INDENT, end="", soft_wrap=True)
            console.print(shown, soft_wrap=True)
