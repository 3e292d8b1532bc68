"""`nantrap check`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from nantrap.incident.wording import escaped

_EPILOG = (
    """A plan (--expect) says what the run should do, as a whole and stage by stage: see docs/commands/check.md."""
)


class CheckCommand:
    """Judge a run, finished or running, or a log that nantrap did not write.

    Reads a run folder, JSON lines, trainer_state.json, metrics.csv, a text log or TensorBoard event files. Checks
    the loss (finite, falling, spikes), the steps that were applied, incidents, the gradient norm, the learning rate,
    watched values and evaluations. Exit code 0: healthy, or only warnings; 1: something failed, or there is nothing
    to judge; 2: wrong use.
    """

    name = "check"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = _EPILOG
        parser.add_argument("path", metavar="RUN|LOG", help="a run folder, or a log file")
        parser.add_argument("--expect", metavar="stages.yaml", help="what the run should do, stage by stage")
        parser.add_argument(
            "--format", choices=("text", "json", "junit", "github"), default="text", help="the form of the verdict"
        )
        parser.add_argument("--json", action="store_true", help="short for --format json")
        parser.add_argument("--strict", action="store_true", help="exit code 1 for a warning as well")
        parser.add_argument(
            "--stalled-after",
            type=_seconds,
            metavar="SECONDS",
            help="fail if an unfinished run has written nothing for this many seconds (also 10m, 2h)",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Run it."""
        from nantrap import health
        from nantrap.cli.reading import open_runs
        from nantrap.report.verdicts import verdict_as_github, verdict_as_junit, verdict_as_text

        expect = health.read_expectations(arguments.expect) if arguments.expect else None
        (run,) = open_runs([arguments.path])
        verdict = health.judge(run, expect=expect, stalled_after=arguments.stalled_after, now=time.time())
        form = "json" if arguments.json else arguments.format
        if form == "json":
            print(json.dumps({**verdict.to_dict(), "problems": list(run.problems)}, allow_nan=False))
        elif form == "junit":
            print(verdict_as_junit(verdict))
        elif form == "github":
            print(verdict_as_github(verdict))
        else:
            _print(verdict_as_text(verdict, color=_colored()))
        for problem in run.problems:
            print(f"warning: {escaped(problem, most=1000)}", file=sys.stderr)
        bad = ("fail", "unknown", "warn") if arguments.strict else ("fail", "unknown")
        return 1 if verdict.outcome in bad else 0


def _seconds(text: str) -> float:
    unit = {"s": 1, "m": 60, "h": 3600, "d": 86_400}.get(text[-1:])
    value = float(text[:-1] if unit else text) * (unit or 1)
    if not value > 0:
        raise argparse.ArgumentTypeError("more than 0 seconds")
    return value


def _colored() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _print(text: str) -> None:
    """Print, with plain letters where the output cannot encode the signs."""
    encoding = sys.stdout.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        for sign, plain in (("✓", "ok"), ("▲", "!"), ("✖", "x"), ("×", "x")):
            text = text.replace(sign, plain)
        text = text.encode(encoding, "replace").decode(encoding)
    print(text)
