"""Incidents and runs in a notebook: the same pages, each in its own frame, so that no style leaks in or out."""

from __future__ import annotations

import shlex
from pathlib import Path

from markupsafe import Markup

from nantrap.errors import NantrapError, UsageError
from nantrap.incident import Incident
from nantrap.record import Run
from nantrap.report.pages import incident_page, run_page
from nantrap.report.surroundings import surroundings
from nantrap.report.view_incident import view_incident
from nantrap.report.view_run import view_run
from nantrap.report.writing import make_report

_USAGE = "%nantrap report PATH shows the report on a run or an incident here; other commands: !nantrap COMMAND"


class NotebookPage:
    """A page that a notebook shows as HTML."""

    def __init__(self, page: str, text: str) -> None:
        self._page = page
        self._text = text

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return framed(self._page)


def incident_html(incident: Incident) -> str:
    """An incident for a notebook."""
    folder = Path(incident.bundle) if incident.bundle and Path(incident.bundle).is_dir() else None
    return framed(incident_page(view_incident(incident, surroundings(incident, folder)), links=False))


def run_html(run: Run) -> str:
    """A run for a notebook."""
    return framed(run_page(view_run(run), links=False))


def framed(page: str) -> str:
    """A page inside of another one. The empty sandbox lets it run and open nothing."""
    return str(
        Markup(
            '<iframe title="nantrap report" sandbox="" srcdoc="{}" width="100%" height="640" frameborder="0"></iframe>'
        ).format(page)
    )


def magic(line: str) -> NotebookPage | None:
    """`%nantrap report runs/exp1`."""
    words = shlex.split(line)
    try:
        if len(words) != 2 or words[0] != "report":
            raise UsageError(_USAGE)
        report = make_report(words[1], beside=False)
    except NantrapError as error:
        print(f"error: {error}")  # noqa: T201  (a notebook shows a line better than a traceback)
        return None
    return NotebookPage(report.text, f"report on {report.about}")
