"""`nantrap report`: a run or an incident as a page, or in a format for machines."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nantrap.incident.wording import escaped

_SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".json": "json", ".xml": "junit", ".sarif": "sarif"}


class ReportCommand:
    """Write a report on a run or an incident: one HTML file that needs no network and no script.

    PATH is the folder of a run (runs/exp1), the folder of an incident (runs/exp1/incidents/001204-r0), or a log that
    nantrap did not write. The page goes to report.html in that folder, or to -o FILE; its ending chooses the format if
    --format does not. Other formats go to stdout unless -o is given. Needs no torch. Exit code 0; 2: wrong use.
    """

    name = "report"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("path", metavar="PATH", help="the folder of a run or of an incident, or a log")
        parser.add_argument("-o", "--output", metavar="FILE", help="where to write it; - is stdout")
        parser.add_argument(
            "--format",
            choices=("html", "md", "json", "junit", "github", "sarif"),
            help="default: html, or by FILE's name",
        )
        parser.add_argument("--json", action="store_true", help="the same as --format json")
        parser.add_argument(
            "--expect", metavar="stages.yaml", help="check a run stage by stage, as `nantrap check` does"
        )
        parser.add_argument("--force", action="store_true", help="overwrite FILE if it exists")

    def run(self, arguments: argparse.Namespace) -> int:
        """Make the report and say where it is."""
        from nantrap.cli.reading import list_runs, runs_below
        from nantrap.report.writing import make_report, save

        if runs_below(arguments.path):
            return list_runs(arguments.path, "report", as_json=arguments.json or arguments.format == "json")

        output = arguments.output
        kind = "json" if arguments.json else arguments.format
        if kind is None:
            kind = _SUFFIXES.get(Path(output).suffix.lower(), "html") if output else "html"
        report = make_report(arguments.path, kind, beside=output is None, expect=arguments.expect)
        if output == "-" or (output is None and kind != "html"):
            sys.stdout.write(report.text)
            return 0
        place = report.place if output is None else Path(output)
        save(report, place, force=arguments.force)
        print(escaped(f"report on {report.about}: {place}", most=4000))
        return 0
