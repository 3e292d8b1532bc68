"""`nantrap watch`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nantrap.record import Run


class WatchCommand:
    """Follow a run or a log live in the terminal: progress, curves, skipped steps, the last incident.

    Reads what nantrap check reads, also while it grows, also after it has ended. On a terminal it is a full-screen
    view (pip install 'nantrap[watch]'); in a pipe, or with --plain, a line for every change. Keys: q quit, [ ] older
    and newer incidents, r next rank, w stretch of the curves, l logarithmic or linear, p pause.
    """

    name = "watch"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("path", metavar="RUN|LOG", help="a run folder, or a log file")
        parser.add_argument("--plain", action="store_true", help="lines instead of the full-screen view")
        parser.add_argument("--once", action="store_true", help="show the run as it is now, and end")
        parser.add_argument("--json", action="store_true", help="with --once: the view as JSON")
        parser.add_argument(
            "--interval", type=float, default=1.0, metavar="SECONDS", help="seconds between updates (default: 1)"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Run it."""
        from nantrap.cli.reading import list_runs, open_runs, runs_below
        from nantrap.errors import UsageError

        if not arguments.interval > 0:
            raise UsageError("--interval: more than 0 seconds")
        if arguments.json and not arguments.once:
            raise UsageError("--json goes with --once: a live view has no end")
        if runs_below(arguments.path):
            return list_runs(arguments.path, "watch", as_json=arguments.json)
        (run,) = open_runs([arguments.path])
        if arguments.once:
            _show_once(run, as_json=arguments.json)
        elif arguments.plain or not _is_screen():
            _follow(run, arguments.interval)
        else:
            try:
                from nantrap.report.watching import WatchApp
            except ImportError:
                print("plain lines: for the full-screen view, pip install 'nantrap[watch]'", file=sys.stderr)
                _follow(run, arguments.interval)
            else:
                WatchApp(run, interval=arguments.interval).run()
        return 0


def _is_screen() -> bool:
    """The view reads keys from standard input and draws on standard error."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return all(stream is not None and stream.isatty() for stream in streams) and os.environ.get("TERM") != "dumb"


def _show_once(run: Run, *, as_json: bool) -> None:
    """Print the state of a run once, as text or JSON."""
    import dataclasses
    import json

    from nantrap import health
    from nantrap.problems.terminal import Printer, is_screen
    from nantrap.report.live import incident_texts, view_of
    from nantrap.report.terminal import wants_details

    view = view_of(run, now=time.time(), verdict=health.judge(run))
    if as_json:
        print(json.dumps({"schema": "nantrap.watch/1", **dataclasses.asdict(view)}))
        return
    printer = Printer(sys.stdout)
    printer.line(view.name, f"  {view.headline}")
    for value in view.values:
        alarm = f"  {value.alarm}" if value.alarm else ""
        printer.line(f"  {value.name:<14} {value.last:>10}  {value.spark}", f"  {value.course}{alarm}")
    probes = f", left out by the GradScaler {view.scaler_probes:,}" if view.scaler_probes else ""
    printer.line(f"  applied {view.applied:,}, skipped {view.skipped:,}, rolled back {view.rollbacks:,}{probes}")
    for row in view.ranks:
        printer.line(f"  rank {row.rank}: step {row.step:,}, loss {row.loss}, skipped {row.skipped:,}")
    for trouble in view.trouble:
        printer.line(f"  {trouble}")
    width = printer.width if is_screen(sys.stdout) else None
    texts = incident_texts(run, width=width, brief=not wants_details())
    if texts:
        printer.line(f"last incident of {len(texts):,}:")
        print(texts[-1])


def _follow(run: Run, interval: float) -> None:
    """A line for every change, until interrupted or until the run has ended."""
    from nantrap.report.live import new_lines, view_of

    view = view_of(run, now=time.time())
    print(f"{view.name}  {view.headline}", flush=True)
    seen = 0
    while True:
        for line in new_lines(run, since=seen):
            print(line, flush=True)
        seen = len(run.main)
        view = view_of(run, now=time.time())
        if run.is_over or view.state in ("stopped", "dead"):
            print(f"{view.name}  {view.headline}", flush=True)
            return
        while not run.refresh():
            time.sleep(interval)
