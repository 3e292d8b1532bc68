"""`nantrap demo`: a training system with one of its historic faults, run plain, with what was tried, and guarded.

The systems are a package of their own, `nantrap-systems`. It is found by its entry point in the group `nantrap.demos`:
a function that takes the parsed arguments of this command and returns the exit code.
"""

from __future__ import annotations

import argparse
from importlib.metadata import entry_points
from pathlib import Path

from nantrap.errors import UsageError


class DemoCommand:
    """Train a small system that goes NaN: plain, with the remedies that were tried, and under the guard.

    SYSTEM is one of five small but faithful training projects; --fault switches on one of the faults the real project
    had. All runs start from the same seed, the diagnostic is shown as it happens, and a table compares them; the last
    line says where the report is. Without SYSTEM, all systems and faults are listed. Exit code 0: the guard named the
    expected cause; 1: it did not; 2: wrong use.
    """

    name = "demo"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """The arguments of `nantrap demo`."""
        parser.add_argument("system", nargs="?", metavar="SYSTEM", help="the system; without it, the list of all")
        parser.add_argument("--fault", metavar="NAME", help="the fault (default: the system's main one)")
        parser.add_argument("--all", action="store_true", help="every fault of the system, or of all systems")
        parser.add_argument("--steps", type=int, default=60, metavar="N", help="steps of each run (default: 60)")
        parser.add_argument("--seed", type=int, default=8, metavar="N", help="the same for all runs (default: 8)")
        parser.add_argument(
            "--run-dir", type=Path, metavar="DIR", help="where journal and incidents go (default: a temporary folder)"
        )
        parser.add_argument(
            "--jobs",
            type=int,
            metavar="N",
            help="runs (with --all: faults) in parallel, one process each (default: one per core)",
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")

    def run(self, arguments: argparse.Namespace) -> int:
        """Give the arguments to the package that has the systems; 0 if the cause of each fault was named."""
        found = next(iter(entry_points(group="nantrap.demos")), None)
        if found is None:
            raise UsageError(
                "the training systems are a package of their own, which is not installed. "
                "Install it with: pip install nantrap-systems"
            )
        return int(found.load()(arguments))
