"""`nantrap data`: check data files before training."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING

from nantrap.incident.wording import counted, escaped, size
from nantrap.problems.progress import ProgressBar
from nantrap.problems.terminal import Line, Printer, first_problems, help_lines

if TYPE_CHECKING:
    from nantrap.doctor.data import DataFinding, DataReport

_SHOWN = 8
"""Findings of one file on the terminal; --json has all."""
_SHOWN_FILES = 20
_SHOWN_FIELDS = 20
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
        from nantrap.doctor.data.quarantine import check_target
        from nantrap.doctor.data.readers.factory import is_factory
        from nantrap.engines import engine_named

        printer = Printer(sys.stdout)
        remarks = Printer(sys.stderr)
        if arguments.quarantine:
            check_target(arguments.quarantine, force=arguments.force)
        for path in filter(is_factory, arguments.paths):
            remarks.line(("note", "bold cyan"), f": {_shown(path)} is imported and run: your own code")
        options = DataOptions(arguments.classes, arguments.vocab, arguments.labels, arguments.mask, arguments.dtype)
        engine = engine_named(arguments.engine, workers=arguments.workers)
        with ProgressBar(sys.stderr) as bar:
            report = check_data(arguments.paths, options=options, engine=engine, progress=bar.reading())
        if arguments.json:  # before the list is written: a full disk must not cost the report
            print(json.dumps(report.to_dict(), indent=2, allow_nan=False))
        else:
            _say(printer, report)
        if arguments.quarantine:
            count = write_bad_samples(report, arguments.quarantine, force=arguments.force)
            remarks.line(f"{count:,} bad samples are listed in {_shown(arguments.quarantine)}")
        elif any(finding.indices for finding in report.findings) and not arguments.json:
            printer.line("to leave the bad samples out: nantrap data ... --quarantine bad-samples.json")
        return 0 if report.clean else 1


def _positive(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number of 1 or more")
    return int(text)


def _say(printer: Printer, report: DataReport) -> None:
    """Print the findings by file, then what helps, notes and a summary."""
    by_file: dict[str, list[DataFinding]] = {}
    for finding in report.findings:
        by_file.setdefault(finding.file, []).append(finding)
    for path, findings in list(by_file.items())[:_SHOWN_FILES]:
        count = report.lengths.get(path)
        facts = counted(count, "sample") if count else ""
        printer.line(("bad", "bold red"), " ", (_shown(path), "bold"), "  ", (facts, "dim"))
        printer.lines(first_problems(findings, _line, most=_SHOWN))
    if len(by_file) > _SHOWN_FILES:
        printer.line(f"and {len(by_file) - _SHOWN_FILES:,} more files with findings (--json lists all)")
    printer.lines(help_lines(report.findings))
    for note in report.notes:
        printer.line(("note", "bold cyan"), f": {_shown(note)}")
    for span in report.spans[:_SHOWN_FIELDS]:
        figures = f"min {span.least:.6g}, max {span.greatest:.6g}, mean {span.mean:.6g}"
        printer.line((_shown(span.field), "bold"), f": {figures} ({counted(span.values, 'finite value')})")
    if len(report.spans) > _SHOWN_FIELDS:
        printer.line(f"and {len(report.spans) - _SHOWN_FIELDS:,} more fields (--json lists all)")
    if report.not_read:
        endings = Counter(os.path.splitext(path)[1] or "without an ending" for path in report.not_read)
        kinds = ", ".join(f"{_shown(ending)} {count:,}" for ending, count in endings.most_common(_SHOWN))
        more = ", …" if len(endings) > _SHOWN else ""
        left = counted(len(report.not_read), "file")
        printer.line(("not read", "bold cyan"), f": {left} of other kinds ({kinds}{more}; --json lists all)")
    found = f"{counted(len(report.findings), 'finding')} in {counted(len(by_file), 'file')}"
    printer.line(
        f"{counted(len(report.lengths), 'file')} read, {counted(report.samples, 'sample')}, {size(report.bytes)}: "
        + (found if by_file else "nothing found")
    )


def _line(finding: DataFinding) -> Line:
    field = f"{_shown(finding.field)}: " if finding.field is not None else ""
    return (f"{finding.slug}[{finding.code}]", "bold yellow"), f": {field}{_shown(finding.message)}"


def _shown(text: str) -> str:
    return escaped(text, most=_LONGEST)
