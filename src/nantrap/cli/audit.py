"""`nantrap audit`: check checkpoints, name the last good one, move the bad ones out of the way."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nantrap.errors import NantrapError, UsageError
from nantrap.incident.wording import counted, escaped, size
from nantrap.problems.progress import ProgressBar
from nantrap.problems.terminal import STYLES, Line, Printer, first_problems, help_lines

if TYPE_CHECKING:
    from nantrap.checkpoints import AuditReport, CheckpointAudit, Move
    from nantrap.checkpoints.audit.auditing import AuditTeam
    from nantrap.checkpoints.audit.showing import Shown
    from nantrap.checkpoints.audit.verdict import CheckpointProblem

_SHOWN = 5
"""Problems of one checkpoint on the terminal; --json has all."""
_MOST_WORKERS = 64


class AuditCommand:
    """Check checkpoints for NaN, Inf, absurd values, damage and unsafe pickles, without running pickled code.

    PATH is a file, a folder, a glob in quotes or a URL that fsspec understands (s3://bucket/run). It reads torch files
    (zip and older formats), Lightning, safetensors, sharded Hugging Face folders, Accelerate, transformers, DeepSpeed
    and torch.distributed.checkpoint. Of several steps of a run, the newest healthy one is named. Exit code 0: all
    healthy, or with --last-good: one was found; 1: problems found, or code that could not be judged; 2: wrong use.
    """

    name = "audit"
    _code = 2

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """The arguments of `nantrap audit`."""
        add = parser.add_argument
        add("paths", nargs="+", metavar="PATH", help="file, folder, glob or URL")
        add("--json", action="store_true", help="print the whole report as JSON on stdout")
        add("--show", action="append", metavar="PATTERN", help='also print tensors whose names match, e.g. "*.alpha"')
        add("--fast", action="store_true", help="do not check CRC-32 and hashes: flipped bits may go unnoticed")
        add("--strict", action="store_true", help="exit code 1 also if loading needs code that is not known")
        add("--workers", type=_count, metavar="N", help="threads (default: one per core, at most 4) or Ray tasks")
        add("--engine", choices=("local", "ray"), default="local", help="read here, or as tasks of a Ray cluster")
        add("--quarantine", metavar="DIR", help="move unhealthy checkpoints into DIR; nothing is deleted")
        add("--config", metavar="FILE", help="the run's settings: report checkpoints with another learning rate")
        reading = parser.add_mutually_exclusive_group()
        reading.add_argument("--all", action="store_true", help="read every checkpoint, however many and large")
        last_good = "only find the newest healthy checkpoint, by bisection, and print its path on stdout"
        reading.add_argument("--last-good", action="store_true", help=last_good)

    def run(self, arguments: argparse.Namespace) -> int:
        """Audit and print; 0 if every checkpoint is healthy, 1 if one is not, 2 for an error."""
        with _lean_imports():
            import numpy  # noqa: F401 - first: it takes 6 ms longer after the modules of the audit

            import nantrap.checkpoints.audit.auditing  # noqa: F401 - all that every audit needs
            from nantrap.checkpoints.audit.auditing import ranks_of_environment

        # the path that --last-good finds, or the JSON, is all that goes to stdout then
        printer = Printer(sys.stderr if arguments.json or arguments.last_good else sys.stdout)
        with ranks_of_environment() as ranks:
            try:
                return self._audit(arguments, ranks, printer)
            except BrokenPipeError:  # `| head` has read enough, and must not make the verdict a good one
                for stream in (sys.stdout, sys.stderr):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
                return self._code
            except (NantrapError, OSError) as error:
                if ranks.rank == 0:
                    Printer(sys.stderr).line(("error", "bold red"), f": {escaped(str(error), most=1000)}")
                return 2

    def _audit(self, arguments: argparse.Namespace, ranks: AuditTeam, printer: Printer) -> int:
        """Audit the paths and print what was found on rank 0; gives the exit code."""
        from nantrap.checkpoints.audit.auditing import audit

        speaks = ranks.rank == 0
        differing: list[tuple[str, Any]] = []
        left: list[tuple[str, str]] = []
        began = time.time()
        configured = None
        if arguments.config:
            from nantrap.checkpoints.store.config_rate import configured_rate

            configured = configured_rate(arguments.config)  # a wrong file is reported before gigabytes are read
        engine = None
        if arguments.engine != "local":
            from nantrap.engines import engine_named

            engine = engine_named(arguments.engine, workers=arguments.workers)
        with ProgressBar(sys.stderr) as bar:
            report = audit(
                arguments.paths,
                verify=not arguments.fast,
                # what is moved must have been read, so a quarantine reads everything
                read_all=False
                if arguments.last_good
                else True
                if arguments.all or arguments.quarantine is not None
                else None,
                workers=arguments.workers,
                ranks=ranks,
                engine=engine,
                progress=bar.reading() if speaks else None,
            )
        if configured is not None:
            from nantrap.checkpoints import compare_with_config

            differing = compare_with_config(report, arguments.config)
        self._code = 0 if not differing and _passes(report, arguments) else 1
        shown = _values(report, arguments.show)
        moves: tuple[Move, ...] = ()
        if arguments.quarantine is not None and speaks:
            from nantrap.checkpoints import quarantine

            moves = quarantine(
                report.checkpoints,
                arguments.quarantine,
                began=began,
                on_left=lambda path, reason: left.append((path, reason)),
            )
        if speaks and arguments.json:
            document = report.to_dict()
            if left:
                document["not_moved"] = [{"path": path, "reason": reason} for path, reason in left]
            if moves:
                document["quarantined"] = [move.to_dict() for move in moves]
            if arguments.config:
                document["resume"] = [{"path": path, "text": found.text} for path, found in differing]
            if arguments.show:
                document["shown"] = [one.to_dict() for one in shown]
            print(json.dumps(document, indent=2, allow_nan=False))
        elif speaks:
            _say(printer, report, moves, shown)
            for path, reason in left:
                printer.line(("not moved", "bold yellow"), f": {escaped(path)}: {escaped(reason, most=1000)}")
            for path, found in differing:
                printer.line((escaped(path), "bold"), f": {escaped(found.text, most=1000)}")
                printer.line(("  help", "cyan"), f": {escaped(found.help, most=1000)}")
            if arguments.last_good and report.last_good is not None:
                _print_path(report.last_good)
        # A launcher ends all ranks as soon as one fails, so the others must not fail while rank 0 still moves files.
        return self._code if speaks else 0


def _passes(report: AuditReport, arguments: argparse.Namespace) -> bool:
    """Whether all checkpoints may be loaded; with `--last-good`, whether the one that was found may be.

    Code that nantrap does not know counts only with `--strict`.
    """
    asked = [each for each in report.checkpoints if not arguments.last_good or each.path == report.last_good]
    return bool(asked or not arguments.last_good) and all(
        each.healthy and not each.runs_unknown_code and not (arguments.strict and each.needs_other_code)
        for each in asked
    )


@contextlib.contextmanager
def _lean_imports() -> Iterator[None]:
    """Import numpy in two thirds of the time: without a BLAS thread for each core, and without garbage collection."""
    if "numpy" not in sys.modules:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _values(report: AuditReport, patterns: list[str] | None) -> list[Shown]:
    """The tensors whose names match the patterns, with their values; raises if none does."""
    if not patterns:
        return []
    from nantrap.checkpoints.audit.showing import show

    shown = show([checkpoint.path for checkpoint in report.checkpoints], patterns)
    if not shown:
        raise UsageError(f"no tensor is named like {', '.join(patterns)}; --json lists the names that have problems")
    return shown


def _say_values(printer: Printer, shown: list[Shown]) -> None:
    """Print tensors with their first values and their range."""
    path = None
    for one in shown:
        if one.path != path:
            path = one.path
            printer.line("values in ", (escaped(path), "bold"))
        values = ", ".join(f"{value:.6g}" if isinstance(value, float) else str(value) for value in one.values)
        count = math.prod(one.shape)
        more = f", … ({count:,} values)" if count > len(one.values) else ""
        span = "" if one.low is None or count == 1 else f"  min {one.low:.6g}, max {one.high:.6g}"
        printer.line(f"    {escaped(one.name)} ", (f"{one.dtype} {list(one.shape)}", "dim"), f": {values}{more}{span}")


def _print_path(path: str) -> None:
    """On a terminal without control characters, into a pipe byte for byte: a name need not be text."""
    if sys.stdout.isatty():
        print(escaped(path, most=4000))
        return
    sys.stdout.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        print(path)
    else:
        buffer.write(os.fsencode(path) + b"\n")
        buffer.flush()


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:9]) <= _MOST_WORKERS and len(text) < 9):
        shown = escaped(text, most=40)
        raise argparse.ArgumentTypeError(f"{shown} is not a number of threads; give 1 to {_MOST_WORKERS}")
    return int(text)


def _say(printer: Printer, report: AuditReport, moves: tuple[Move, ...], shown: list[Shown]) -> None:
    """Print every checkpoint, the values that were asked for, the summary, what was moved and the last good one."""
    for checkpoint in report.checkpoints:
        _say_checkpoint(printer, checkpoint)
    _say_values(printer, shown)
    bad = sum(not checkpoint.healthy for checkpoint in report.checkpoints)
    count = len(report.checkpoints)
    asks = sum(checkpoint.verdict == "ask" for checkpoint in report.checkpoints)
    summary = f"{count:,} checkpoint{'s' if count != 1 else ''} read: {count - bad - asks:,} healthy, {bad:,} not"
    if asks:
        summary += f", {asks:,} with code that is not known"
    if report.not_read:
        summary += f"; {len(report.not_read):,} not read (bisection; --all reads them too)"
    printer.line(summary)
    for move in moves:
        printer.line(f"moved {escaped(move.source)} to {escaped(move.target)}")
        printer.line("  undo: ", (escaped(move.undo, most=4000), "bold"))
    for hint in report.hints:
        printer.line(("hint", "cyan"), f": {hint}")
    if report.last_good is not None:
        asks = any(one.path == report.last_good and one.verdict == "ask" for one in report.checkpoints)
        note = " (its values; loading it would run code that is not known)" if asks else ""
        printer.line("last good: ", (escaped(report.last_good, most=4000), "bold green"), note)
    elif any(checkpoint.holds_model for checkpoint in report.checkpoints):
        printer.line("last good: ", ("none of them", "bold red"))
    elif report.checkpoints:
        printer.line("last good: none of them holds a model")


def _say_checkpoint(printer: Printer, checkpoint: CheckpointAudit) -> None:
    """Print the verdict on a checkpoint, its first problems and what helps against them."""
    mark = {"ok": ("ok ", "bold green"), "ask": ("ask", "bold yellow"), "bad": ("bad", "bold red")}[checkpoint.verdict]
    tensors = counted(checkpoint.tensors, "tensor")
    parts = [checkpoint.format, tensors, size(checkpoint.bytes)]
    parts += [f"{key.replace('_', ' ')} {_fact(value)}" for key, value in checkpoint.facts.items()]
    printer.line(mark, " ", (escaped(checkpoint.path), "bold"), "  ", (escaped(" · ".join(parts)), "dim"))
    printer.lines(first_problems(checkpoint.problems, _line, most=_SHOWN))
    for line in help_lines(checkpoint.problems[:_SHOWN]):
        printer.line("    ", *line)


def _line(problem: CheckpointProblem) -> Line:
    """A problem in one line, with file, shape and the place of the first bad value."""
    where = [escaped(problem.file, most=120)] if problem.file else []
    if problem.shape is not None:
        where.append(f"{problem.dtype} {list(problem.shape)}")
    if problem.first_index:
        where.append(f"first at {list(problem.first_index)}")
    suffix = f" ({', '.join(where)})" if where else ""
    words = f"[{problem.code}]: {escaped(problem.message, most=1000)}{suffix}"
    return (problem.severity, STYLES[problem.severity]), words


def _fact(value: Any) -> str:
    values = value if isinstance(value, list) else [value]
    shown = [f"{item:g}" if isinstance(item, float) else str(item)[:40] for item in values[:8]]
    return ", ".join(shown) + (", …" if len(values) > 8 else "")
