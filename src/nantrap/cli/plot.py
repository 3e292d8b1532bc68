"""`nantrap plot`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nantrap.incident.wording import escaped

_DEFAULT = "loss_curve.png"


class PlotCommand:
    """Draw the curves of one or several runs or logs as PNG, SVG or PDF.

    Loss on a logarithmic axis by default, any column with --y. NaN is shown as a gap with a mark, skipped steps as
    ticks, rollbacks as triangles. Reads what nantrap check reads. Needs matplotlib: pip install 'nantrap[plot]'.
    """

    name = "plot"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("paths", nargs="+", metavar="RUN|LOG", help="run folders or log files")
        parser.add_argument(
            "-o", "--output", metavar="FILE", help=f"default: {_DEFAULT}, which is overwritten if it exists"
        )
        parser.add_argument(
            "--y",
            default="loss",
            metavar="NAMES",
            help="columns, one panel each: loss,grad_norm,lr,'watch.*' (default: loss)",
        )
        parser.add_argument("--x", choices=("step", "epoch"), default="step", help="the x axis (default: step)")
        parser.add_argument("--linear", action="store_true", help="no logarithmic y axis")
        parser.add_argument("--side-by-side", action="store_true", help="a column of panels for each run")
        parser.add_argument("--rank", type=int, metavar="N", help="the rank to draw (default: the lowest)")
        parser.add_argument("--force", action="store_true", help="overwrite FILE")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run it."""
        from nantrap import record
        from nantrap.cli.reading import open_runs
        from nantrap.errors import UsageError
        from nantrap.report.plots import FORMATS, PlotOptions, plot_runs

        output = Path(arguments.output or _DEFAULT)
        form = output.suffix[1:].lower()
        if form not in FORMATS:
            raise UsageError(f"-o {output}: a picture ends in .png, .svg or .pdf")
        if arguments.output and output.exists() and not arguments.force:
            raise UsageError(f"{output} exists and is not overwritten without --force")
        options = PlotOptions(
            columns=tuple(name.strip() for name in arguments.y.split(",") if name.strip()) or ("loss",),
            log=not arguments.linear,
            by_epoch=arguments.x == "epoch",
            side_by_side=arguments.side_by_side,
            rank=arguments.rank,
        )
        only = None if any(sign in arguments.y for sign in "*?[") else options.columns
        runs = open_runs(arguments.paths, columns=only and (*only, "epoch"))
        try:
            picture = plot_runs(runs, form=form, options=options)
        except UsageError:
            if only is None:
                raise
            # a column that is not there, or has another name: only the whole log shows it
            runs = open_runs(arguments.paths)
            picture = plot_runs(runs, form=form, options=options)
        try:
            record.write_atomically(output, picture)
        except OSError as error:
            raise UsageError(f"{output}: cannot be written: {error.strerror or error}") from None
        for run in runs:
            if only is not None and all(run.main.get(name) is None for name in only):
                words = " or ".join(options.columns)
                print(escaped(f"warning: {run.path}: nothing is drawn, it has no {words}", most=1000), file=sys.stderr)
            for problem in run.problems:
                print(escaped(f"warning: {run.name}: {problem}", most=1000), file=sys.stderr)
        print(output)
        return 0
