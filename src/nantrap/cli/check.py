"""`nantrap check`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nantrap.cli.reading import SEVERITIES
from nantrap.errors import UsageError
from nantrap.incident.wording import escaped, visible
from nantrap.problems import Problem, worst
from nantrap.problems.github import annotation
from nantrap.problems.terminal import Line, Printer, check_lines, marked

if TYPE_CHECKING:
    from nantrap.health import HealthFinding, HealthVerdict

_EPILOG = """A plan (--expect) says what the run should do, as a whole and stage by stage:

  stages:
    - name: warm up
      epochs: 1-5          # or steps: 0-3000
      loss: falls          # falls, stable, or limits: {below: 5}
      incidents: 0         # at most
      values: {grad_norm: {below: 10}}
"""

_KINDS: Final = {
    "nantrap": "nantrap journal", "jsonl": "JSON lines", "json": "JSON log", "csv": "table", "text": "text log",
    "tensorboard": "TensorBoard events",
}  # fmt: skip


class CheckCommand:
    """Judge a run, finished or running, or a log that nantrap did not write.

    Reads a run folder, JSON lines, trainer_state.json, metrics.csv, a text log or TensorBoard event files. Checks
    the loss (finite, falling, spikes), the steps that were applied, incidents, the gradient norm, the learning rate,
    watched values and evaluations. A folder of runs gives a line for each of them. Exit code 0: healthy, or only
    warnings; 1: something failed, or there is nothing to judge; 2: wrong use.
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
        from nantrap.cli.reading import open_runs, runs_below

        bad = ("fail", "unknown", "warn") if arguments.strict else ("fail", "unknown")
        expect = health.read_expectations(arguments.expect) if arguments.expect else None
        if several := runs_below(arguments.path):
            return _check_all(several, arguments, bad)
        (run,) = open_runs([arguments.path])
        verdict = health.judge(run, expect=expect, stalled_after=arguments.stalled_after, now=time.time())
        form = "json" if arguments.json else arguments.format
        if form == "json":
            print(json.dumps({**verdict.to_dict(), "problems": list(run.problems)}, allow_nan=False))
        elif form == "junit":
            print(_as_junit(verdict), end="")
        elif form == "github":
            print(*_as_github(verdict), sep="\n")
        else:
            Printer(sys.stdout).lines(_as_lines(verdict))
        for problem in run.problems:
            Printer(sys.stderr).line(("warning", "bold yellow"), f": {escaped(problem, most=1000)}")
        return 1 if verdict.outcome in bad else 0


def _check_all(runs: Sequence[Path], arguments: argparse.Namespace, bad: Collection[str]) -> int:
    """Judge the runs of a folder and print a line for each; 1 if one of them is not healthy."""
    from nantrap.cli.reading import judged, show_verdicts

    if arguments.expect or arguments.format in ("junit", "github"):
        raise UsageError(f"{arguments.path} holds {len(runs):,} runs; --expect and this format take one of them")
    verdicts = judged(runs)
    show_verdicts(verdicts, as_json=arguments.json or arguments.format == "json")
    return 1 if any(verdict.outcome in bad for _, verdict in verdicts) else 0


def _seconds(text: str) -> float:
    unit = {"s": 1, "m": 60, "h": 3600, "d": 86_400}.get(text[-1:])
    value = float(text[:-1] if unit else text) * (unit or 1)
    if not value > 0:
        raise argparse.ArgumentTypeError("more than 0 seconds")
    return value


def _as_lines(verdict: HealthVerdict) -> Iterator[Line]:
    """The verdict for a person: one line for each check, with a sign and a word."""
    kind = _KINDS.get(verdict.kind, verdict.kind)
    last = f", last step {verdict.last_step:,}" if verdict.last_step >= 0 else ""
    facts = f"{kind}, {verdict.steps:,} rows{last}, {visible(verdict.state)}"
    yield marked(SEVERITIES[verdict.word], verdict.word), f"  {visible(verdict.run)}  ({facts})"
    for finding in verdict.findings:
        yield from check_lines(finding, "  ")
    for stage in verdict.stages:
        severity = "unjudged" if stage.state == "not reached" else worst(stage.findings)
        yield (marked(severity, f"stage: {visible(stage.name)} ({stage.span}, {stage.state})"),)
        for finding in stage.findings:
            yield from check_lines(finding, "    ")
    if verdict.advice:
        yield (f"next: {visible(verdict.advice)}",)


def _as_junit(verdict: HealthVerdict) -> str:
    """The verdict as JUnit XML: a test case for each check; what fails is a failure, what is not known is skipped."""
    from nantrap.problems.junit import JUnitCase, junit_document

    def case(group: str, finding: HealthFinding) -> JUnitCase:
        if finding.severity == "error":
            return JUnitCase(f"check.{group}", finding.code, "failed", finding.message, finding.fix)
        if finding.severity == "unjudged":
            return JUnitCase(f"check.{group}", finding.code, "skipped", finding.message)
        word = "warning: " if finding.severity == "warning" else ""
        return JUnitCase(f"check.{group}", finding.code, "passed", word + finding.message)

    cases = [case("run", finding) for finding in verdict.findings]
    cases += [case(f"stage {stage.name}", finding) for stage in verdict.stages for finding in stage.findings]
    return junit_document(f"nantrap check {verdict.run}", cases)


def _as_github(verdict: HealthVerdict) -> Iterator[str]:
    """The verdict as workflow commands: errors and warnings that GitHub shows with the run, then the verdict."""
    for place, finding in [
        *(("", finding) for finding in verdict.findings),
        *((f"{stage.name}: ", finding) for stage in verdict.stages for finding in stage.findings),
    ]:
        if finding.severity in ("error", "warning"):
            said = replace(finding, message=place + finding.message, fix="")
            yield annotation(said, title=f"nantrap check: {finding.code}")
    yield annotation(Problem("", "note", f"{verdict.run}: {verdict.word}"), title="nantrap check")
