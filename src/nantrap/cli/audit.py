"""`nantrap audit`: look into checkpoints, name the last good one, move the bad ones out of the way."""

from __future__ import annotations

import argparse
import gc
import json
import threading
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from nantrap.errors import UsageError

if TYPE_CHECKING:
    from nantrap.checkpoints import AuditReport, CheckpointAudit, Move, Problem

_SHOWN = 5
"""Problems of one checkpoint on the terminal; --json has all."""


class Audit:
    """Look into checkpoints for NaN, Inf, absurd values, damage and unsafe pickles, without running pickled code.

    PATH is a file, a folder, a glob in quotes or a URL that fsspec understands (s3://bucket/run). Understood are torch
    files old and new, Lightning, safetensors, sharded Hugging Face folders, Accelerate, transformers, DeepSpeed and
    torch.distributed.checkpoint. Of several steps of a run, the newest healthy one is named. Exit code 0: all healthy;
    1: problems found; 2: wrong use.
    """

    name = "audit"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("paths", nargs="+", metavar="PATH", help="file, folder, glob or URL")
        parser.add_argument("--json", action="store_true", help="print the whole report as JSON on stdout")
        parser.add_argument(
            "--fast", action="store_true", help="do not check CRC-32 and hashes: flipped bits may go unseen"
        )
        parser.add_argument(
            "--workers", type=_count, metavar="N", help="threads that read (default: one a core, at most 4)"
        )
        parser.add_argument(
            "--quarantine",
            metavar="DIR",
            help="move unhealthy checkpoints into DIR; nothing is deleted or overwritten",
        )
        parser.add_argument(
            "--config", metavar="FILE", help="YAML or JSON: say which checkpoints bring another learning rate"
        )
        reading = parser.add_mutually_exclusive_group()
        reading.add_argument(
            "--all", action="store_true", help="read every checkpoint, however many and large they are"
        )
        reading.add_argument(
            "--last-good",
            action="store_true",
            help="only find the newest healthy checkpoint, by bisection, and print its path on stdout",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        import torch

        from nantrap.checkpoints import Progress as Told
        from nantrap.checkpoints import compare_with_config, quarantine
        from nantrap.checkpoints.audit import audit
        from nantrap.checkpoints.audit.ranks import ranks_of_environment

        torch.set_num_threads(1)  # the audit has its own workers, one a core
        gc.freeze()  # else the collector walks through all of torch once, for a tenth of a second
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        with ranks_of_environment() as ranks:
            speaks = ranks.rank == 0
            try:
                with _Bar(console, enabled=speaks) as bar:
                    report = audit(
                        arguments.paths,
                        verify=not arguments.fast,
                        read_all=_read_all(arguments),
                        workers=arguments.workers,
                        ranks=ranks,
                        progress=Told(bar.add_total, bar.add_bytes),
                    )
                differing = compare_with_config(report, arguments.config) if arguments.config else []
                moves: tuple[Move, ...] = ()
                if arguments.quarantine is not None and speaks:
                    moves = quarantine(report.checkpoints, arguments.quarantine)
            except UsageError as error:
                if speaks:
                    console.print(Text.assemble(("error", "bold red"), f": {error}"))
                return 2
            if speaks:
                _say(console, report, moves)
                for path, found in differing:
                    console.print(Text.assemble((path, "bold"), f": {found.text}"))
                    console.print(Text.assemble(("  help", "bold cyan"), f": {found.help}"))
                if arguments.json:
                    document = _as_json(report, moves)
                    if arguments.config:
                        document["resume"] = [{"path": path, "text": found.text} for path, found in differing]
                    print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))
                elif arguments.last_good and report.last_good is not None:
                    print(report.last_good)
        return 0 if report.healthy and not differing else 1


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number of threads; give 1 or more")
    return int(text)


def _read_all(arguments: argparse.Namespace) -> bool | None:
    if arguments.last_good:
        return False
    # What is moved must have been read, so a quarantine reads everything.
    return True if arguments.all or arguments.quarantine is not None else None


def _as_json(report: AuditReport, moves: tuple[Move, ...]) -> dict[str, Any]:
    data = report.to_dict()
    if moves:
        data["quarantined"] = [move.to_dict() for move in moves]
    return data


def _say(console: Console, report: AuditReport, moves: tuple[Move, ...]) -> None:
    for checkpoint in report.checkpoints:
        _say_checkpoint(console, checkpoint)
    bad = sum(not checkpoint.healthy for checkpoint in report.checkpoints)
    count = len(report.checkpoints)
    summary = f"{count:,} checkpoint{'s' if count != 1 else ''} read: {count - bad:,} healthy, {bad:,} not"
    if report.not_read:
        summary += f"; {len(report.not_read):,} not read (bisection; --all reads them too)"
    console.print(summary)
    for move in moves:
        console.print(Text.assemble("moved ", move.source, " to ", move.target))
        console.print(Text.assemble("  undo: ", (move.undo, "bold")))
    if report.last_good is not None:
        console.print(Text.assemble("last good: ", (report.last_good, "bold green")))
    else:
        console.print(Text.assemble("last good: ", ("none of them", "bold red")))


def _say_checkpoint(console: Console, checkpoint: CheckpointAudit) -> None:
    mark = ("ok ", "bold green") if checkpoint.healthy else ("bad", "bold red")
    tensors = f"{checkpoint.tensors:,} tensor{'' if checkpoint.tensors == 1 else 's'}"
    parts = [checkpoint.format, tensors, _size(checkpoint.bytes)]
    parts += [f"{key.replace('_', ' ')} {_fact(value)}" for key, value in checkpoint.facts.items()]
    console.print(Text.assemble(mark, " ", (checkpoint.path, "bold"), "  ", (" · ".join(parts), "dim")))
    for problem in checkpoint.problems[:_SHOWN]:
        _say_problem(console, problem)
    hidden = len(checkpoint.problems) - _SHOWN
    if hidden > 0:
        console.print(f"    and {hidden:,} more (--json lists all)")
    for code in dict.fromkeys(problem.code for problem in checkpoint.problems[:_SHOWN]):
        text = next(problem.help for problem in checkpoint.problems if problem.code == code)
        console.print(Text.assemble("    ", ("help", "cyan"), f"[{code}]: {text}"))


def _say_problem(console: Console, problem: Problem) -> None:
    style = "bold red" if problem.severity == "error" else "bold yellow"
    where = [problem.file] if problem.file else []
    if problem.shape is not None:
        where.append(f"{problem.dtype} {list(problem.shape)}")
    if problem.first_index:
        where.append(f"first at {list(problem.first_index)}")
    suffix = f" ({', '.join(where)})" if where else ""
    console.print(Text.assemble("    ", (problem.severity, style), f"[{problem.code}]: {problem.message}{suffix}"))


def _size(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count / size:,.0f} {unit}"
    return f"{count} bytes"


def _fact(value: Any) -> str:
    values = value if isinstance(value, list) else [value]
    return ", ".join(f"{item:g}" if isinstance(item, float) else str(item) for item in values)


class _Bar:
    """A progress bar on a terminal that appears once the work has lasted a second."""

    def __init__(self, console: Console, *, enabled: bool) -> None:
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("audit", total=0)
        self._enabled = enabled and console.is_terminal
        self._next = time.monotonic() + 1
        self._total = self._read = 0
        self._lock = threading.Lock()
        self._visible = False

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._visible:
            self._progress.stop()

    def add_total(self, count: int) -> None:
        self._total += count
        self._progress.update(self._task, total=self._total)

    def add_bytes(self, count: int) -> None:
        with self._lock:
            self._read += count
            now = time.monotonic()
            if not self._enabled or now < self._next:
                return  # rich takes longer to note a chunk than the audit to read one
            self._next = now + 0.05
            if not self._visible:
                self._progress.start()
                self._visible = True
            self._progress.update(self._task, completed=self._read)
