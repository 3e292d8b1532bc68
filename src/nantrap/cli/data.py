"""`nantrap data`: check data files before training."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from nantrap.incident.wording import counted, escaped

if TYPE_CHECKING:
    from nantrap.doctor.data import DataFinding, DataReport

_SHOWN = 8
"""Findings of one file on the terminal; --json has all."""
_SHOWN_FILES = 20
_LONGEST = 4096
"""Characters of a path or a message that are printed: the longest path of Linux."""


class DataCommand:
    """Check data files for NaN, wrong ranges, copies, empty masks and damage. Nothing in a file is executed.

    PATH is a file, a folder, a glob in quotes or a URL that fsspec understands. It reads .npy, .npz, .pt,
    safetensors, parquet, arrow, CSV, JSON lines, HDF5, images, tar shards. module:dataset is imported and run: that
    is your own code. Exit code 0: nothing found; 1: findings; 2: wrong use.
    """

    name = "data"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """The arguments of `nantrap data`."""
        add = parser.add_argument
        add("paths", nargs="+", metavar="PATH", help="file, folder, glob, URL or module:dataset")
        add("--json", action="store_true", help="print the report as JSON on stdout")
        add("--classes", type=_positive, metavar="N", help="labels must be in 0..N-1 (or -100)")
        add("--vocab", type=_positive, metavar="N", help="token ids must be in 0..N-1")
        add("--labels", metavar="NAME", help="the field with the labels (default: by its name)")
        add("--mask", metavar="NAME", help="the field with the mask (default: by its name)")
        add("--dtype", choices=("float16",), help="the data will be cast to this: report what overflows")
        add("--engine", choices=("local", "ray"), default="local", help="threads here, or a Ray cluster")
        add(
            "--workers",
            type=_positive,
            metavar="N",
            help="threads or Ray tasks that run in parallel (default: one per core)",
        )
        add("--quarantine", metavar="FILE", help="write the bad samples as JSON, for nantrap.without_samples")
        add("--force", action="store_true", help="replace FILE if it exists")

    def run(self, arguments: argparse.Namespace) -> int:
        """Check the data, print the report and write the list of bad samples; 1 if anything was found."""
        from nantrap.doctor.data import DataOptions, check_data, write_bad_samples
        from nantrap.doctor.data import Progress as ReadingProgress
        from nantrap.doctor.data.quarantine import check_target
        from nantrap.doctor.data.readers.factory import is_factory
        from nantrap.engines import engine_named

        console = Console(stderr=True, highlight=False, soft_wrap=True)
        if arguments.quarantine:
            check_target(arguments.quarantine, force=arguments.force)
        for path in filter(is_factory, arguments.paths):
            console.print(Text.assemble(("note", "bold cyan"), f": {_shown(path)} is imported and run: your own code"))
        options = DataOptions(arguments.classes, arguments.vocab, arguments.labels, arguments.mask, arguments.dtype)
        engine = engine_named(arguments.engine, workers=arguments.workers)
        with _Bar(console) as bar:
            report = check_data(
                arguments.paths,
                options=options,
                engine=engine,
                progress=ReadingProgress(bar.add_total, bar.add_bytes, bar.show_samples),
            )
        _say(console, report)
        if arguments.json:  # before the list is written: a full disk must not cost the report
            json.dump(report.to_dict(), sys.stdout, indent=2, allow_nan=False)
            print()
        if arguments.quarantine:
            count = write_bad_samples(report, arguments.quarantine, force=arguments.force)
            console.print(f"{count:,} bad samples are listed in {_shown(arguments.quarantine)}")
        elif any(finding.indices for finding in report.findings):
            console.print("to leave the bad samples out: nantrap data ... --quarantine bad-samples.json")
        return 0 if report.clean else 1


def _positive(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number of 1 or more")
    return int(text)


def _say(console: Console, report: DataReport) -> None:
    """Print the findings by file, then what helps, notes and a summary."""
    by_file: dict[str, list[DataFinding]] = {}
    for finding in report.findings:
        by_file.setdefault(finding.file, []).append(finding)
    for path, findings in list(by_file.items())[:_SHOWN_FILES]:
        count = report.lengths.get(path)
        facts = counted(count, "sample") if count else ""
        console.print(Text.assemble(("bad", "bold red"), " ", (_shown(path), "bold"), "  ", (facts, "dim")))
        for finding in findings[:_SHOWN]:
            field = f"{_shown(finding.field)}: " if finding.field is not None else ""
            console.print(
                Text.assemble(
                    "    ",
                    (f"{finding.slug}[{finding.code}]", "bold yellow"),
                    f": {field}{_shown(finding.message)}",
                )
            )
        if len(findings) > _SHOWN:
            console.print(f"    and {len(findings) - _SHOWN:,} more (--json lists all)")
    if len(by_file) > _SHOWN_FILES:
        console.print(f"and {len(by_file) - _SHOWN_FILES:,} more files with findings (--json lists all)")
    for slug in dict.fromkeys(finding.slug for finding in report.findings):
        first = next(finding for finding in report.findings if finding.slug == slug)
        console.print(Text.assemble(("help", "cyan"), f"[{first.code}]: {first.help}"))
    for note in report.notes:
        console.print(Text.assemble(("note", "bold cyan"), f": {_shown(note)}"))
    found = f"{counted(len(report.findings), 'finding')} in {counted(len(by_file), 'file')}"
    console.print(
        f"{counted(len(report.lengths), 'file')} read, {counted(report.samples, 'sample')}, {_size(report.bytes)}: "
        + (found if by_file else "nothing found")
    )


def _shown(text: str) -> str:
    return escaped(text, most=_LONGEST)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


class _Bar:
    """A progress bar that appears on a terminal if the work takes more than a second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begin = time.monotonic()
        self._lock = threading.Lock()
        self._total = self._done = 0
        self._progress: Progress | None = None
        self._task: Any = None
        self._counts_bytes = True

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def add_total(self, count: int) -> None:
        self._total += count

    def add_bytes(self, count: int) -> None:
        with self._lock:
            self._done += count
            columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
            self._show(columns, self._done, self._total)

    def show_samples(self, done: int, total: int | None) -> None:
        """A dataset made by code is counted in samples; a stream has no end that is known."""
        if self._counts_bytes and self._progress is not None:
            self._progress.stop()
            self._progress = None
        self._counts_bytes = False
        self._show((BarColumn(), MofNCompleteColumn(), TextColumn("samples"), TimeRemainingColumn()), done, total)

    def _show(self, columns: tuple[ProgressColumn, ...], done: int, total: int | None) -> None:
        """Draw the progress in a terminal, from the second second on."""
        if not self._console.is_terminal:
            return
        if self._progress is None:
            if time.monotonic() - self._begin < 1:
                return
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._task = self._progress.add_task("", total=total)
            self._progress.start()
        self._progress.update(self._task, completed=done, total=total)
