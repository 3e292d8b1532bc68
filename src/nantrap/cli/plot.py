"""`nantrap plot`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from nantrap.incident.wording import escaped
from nantrap.problems.terminal import Printer

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
        parser.add_argument("--json", action="store_true", help="say as JSON on stdout what was drawn")

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
        warnings = [f"{run.name}: {problem}" for run in runs for problem in run.problems]
        if only is not None:
            words = " or ".join(options.columns)
            bare = [run for run in runs if all(run.main.get(name) is None for name in only)]
            warnings += [f"{run.path}: nothing is drawn, it has no {words}" for run in bare]
        for warning in warnings:
            Printer(sys.stderr).line(("warning", "bold yellow"), f": {escaped(warning, most=1000)}")
        document = {"schema": "nantrap.plot/1", "picture": str(output), "runs": arguments.paths, "warnings": warnings}
        print(json.dumps(document) if arguments.json else output)
        return 0
