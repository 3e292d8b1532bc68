"""Reports as files: one function for each thing that can be reported on."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nantrap.errors import FormatError, UsageError
from nantrap.health import read_expectations
from nantrap.incident import Incident
from nantrap.problems import Problem
from nantrap.record import Run, open_run, write_atomically
from nantrap.report import formats
from nantrap.report.pages import incident_page, run_page
from nantrap.report.surroundings import surroundings
from nantrap.report.view_incident import IncidentView, view_incident
from nantrap.report.view_run import CheckRow, RunView, view_run

FORMATS = ("html", "md", "json", "junit", "github", "sarif")
REPORT = "report.html"
_REFRESHED = 20
_MARK = '<meta name="generator" content="nantrap '


@dataclass(frozen=True, slots=True)
class RenderedReport:
    """A report in one format, and where it belongs if no place is named."""

    text: str
    place: Path
    about: str


def write_incident_report(folder: str | os.PathLike[str]) -> Path | None:
    """Write `report.html` into the folder of an incident. Never raises: a report must not stop a run.

    Returns:
        The file, or `None` if it could not be written.
    """
    with contextlib.suppress(Exception):
        place = Path(folder)
        write_atomically(place / REPORT, incident_page(read_incident_view(place)))
        return place / REPORT
    return None


def write_run_report(run_dir: str | os.PathLike[str]) -> Path | None:
    """Write `report.html` into the folder of a run, and those of its incidents again, with what came after them.

    Never raises: a report must not stop a run.

    Returns:
        The file, or `None` if it could not be written.
    """
    with contextlib.suppress(Exception):
        place = Path(run_dir)
        if not _ours(place / REPORT):
            return None
        run = open_run(place)
        write_atomically(place / REPORT, run_page(view_run(run)))
        for folder in run.incidents[-_REFRESHED:]:  # pages of the past do not know what came after them
            if folder.incident is not None and (folder.path / REPORT).is_file() and _ours(folder.path / REPORT):
                write_incident_report(folder.path)
        return place / REPORT
    return None


def read_incident_view(folder: Path) -> IncidentView:
    """The view of the incident in a folder, with what was found around it."""
    incident = read_incident(folder)
    return view_incident(incident, surroundings(incident, folder))


def read_incident(folder: Path) -> Incident:
    """The incident in a folder. An unreadable one raises an error that says what is wrong."""
    file = folder / "incident.json"
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{folder}: no incident here (incident.json is missing)") from None
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"{file}: cannot be read: {error}") from None
    try:
        return Incident.from_dict(document)
    except FormatError as error:
        raise FormatError(f"{file}: {error}") from None


def make_report(
    path: str | os.PathLike[str],
    kind: str = "html",
    *,
    beside: bool = True,
    expect: str | os.PathLike[str] | None = None,
) -> RenderedReport:
    """The report on a run, a log or an incident in one of `FORMATS`.

    Args:
        path: the folder of a run or of an incident, an `incident.json`, a journal or a log.
        kind: the format.
        beside: whether the page will be in the folder it reports on, so that it can link to the files there.
        expect: a plan (YAML) against which the stages of a run are checked.
    """
    place = Path(path)
    if place.name == "incident.json" and place.is_file():
        place = place.parent
    if (place / "incident.json").is_file():
        shown = read_incident_view(place)
        return RenderedReport(
            _incident_report(shown, kind, links=beside), place / REPORT, f"step {shown.incident.step:,}"
        )
    run = open_run(place)
    folder = place if place.is_dir() else place.parent
    name = REPORT if place.is_dir() else f"{place.name}.{REPORT}"
    view = view_run(run, expect=read_expectations(expect) if expect is not None else None)
    return RenderedReport(_run_report(run, view, kind, links=beside and place.is_dir()), folder / name, run.name)


def save(report: RenderedReport, place: Path, *, force: bool = False) -> None:
    """Write a report to a file. Only a page that nantrap made is replaced without `force`."""
    if not force and not _ours(place):
        raise UsageError(f"{place} exists and was not written by nantrap; --force overwrites it")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, report.text)
    except OSError as error:
        raise UsageError(f"{place} cannot be written: {error.strerror or error}") from None


def _ours(place: Path) -> bool:
    if not place.exists():
        return True
    try:
        with place.open(encoding="utf-8", errors="replace") as file:
            return _MARK in file.read(4096)
    except OSError:
        return False


def _incident_report(view: IncidentView, kind: str, *, links: bool) -> str:
    if kind == "html":
        return incident_page(view, links=links)
    if kind == "md":
        return formats.incident_markdown(view)
    if kind == "json":
        return formats.incident_json(view)
    return _problems(f"step {view.incident.step}", [formats.problem_of_incident(view.incident)], kind, ())


def _run_report(run: Run, view: RunView, kind: str, *, links: bool) -> str:
    """The report on a run in one of `FORMATS`."""
    if kind == "html":
        return run_page(view, links=links)
    if kind == "md":
        return formats.run_markdown(view)
    if kind == "json":
        return formats.run_json(view)
    incidents = {folder.name: folder.incident for folder in run.incidents if folder.incident is not None}
    return _problems(view.name, formats.problems_of_run(view, incidents), kind, view.stages)


def _problems(name: str, problems: Sequence[Problem], kind: str, stages: Sequence[CheckRow]) -> str:
    if kind == "junit":
        return formats.junit(name, problems, stages=stages)
    return formats.github(problems) if kind == "github" else formats.sarif(problems)
