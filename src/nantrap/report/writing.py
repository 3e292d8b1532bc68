"""Reports as files: one function for each thing that can be reported on."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nantrap.errors import FormatError, UsageError
from nantrap.incident import Incident
from nantrap.record import Run, open_run, write_atomically
from nantrap.report import formats
from nantrap.report.pages import incident_page, run_page
from nantrap.report.surroundings import surroundings
from nantrap.report.view_incident import IncidentView, view_incident
from nantrap.report.view_run import RunView, view_run

FORMATS = ("html", "md", "json", "junit", "github", "sarif")
REPORT = "report.html"
_MARK = '<meta name="generator" content="nantrap '


@dataclass(frozen=True, slots=True)
class Report:
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
        _write(place / REPORT, incident_page(read_incident_view(place)))
        return place / REPORT
    return None


def write_run_report(run_dir: str | os.PathLike[str]) -> Path | None:
    """Write `report.html` into the folder of a run. Never raises: a report must not stop a run.

    Returns:
        The file, or `None` if it could not be written.
    """
    with contextlib.suppress(Exception):
        place = Path(run_dir)
        if not _ours(place / REPORT):
            return None
        _write(place / REPORT, run_page(view_run(open_run(place))))
        return place / REPORT
    return None


def read_incident_view(folder: Path) -> IncidentView:
    """The view of the incident in a folder, with what lies around it."""
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


def make_report(path: str | os.PathLike[str], kind: str = "html", *, beside: bool = True) -> Report:
    """The report on a run, a log or an incident in one of `FORMATS`.

    Args:
        path: the folder of a run or of an incident, an `incident.json`, a journal or a log.
        kind: the format.
        beside: whether the page will lie in the folder it reports on, so that it can link to the files there.
    """
    place = Path(path)
    if place.name == "incident.json" and place.is_file():
        place = place.parent
    if (place / "incident.json").is_file():
        view = read_incident_view(place)
        return Report(_incident_formats[kind](view, beside), place / REPORT, f"step {view.incident.step:,}")
    run = open_run(place)
    folder = place if place.is_dir() else place.parent
    name = REPORT if place.is_dir() else f"{place.name}.{REPORT}"
    return Report(_run_formats[kind](run, beside and place.is_dir()), folder / name, run.name)


def save(report: Report, place: Path, *, force: bool = False) -> None:
    """Write a report to a file. Only a page that nantrap made is replaced without `force`."""
    if not force and not _ours(place):
        raise UsageError(f"{place} exists and was not written by nantrap; --force overwrites it")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _write(place, report.text)
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


def _write(place: Path, text: str) -> None:
    write_atomically(place, text)


def _run_incidents(run: Run) -> list[tuple[str, Incident]]:
    return [(folder.path.name, folder.incident) for folder in run.incidents if folder.incident is not None]


def _run_problems(run: Run) -> tuple[RunView, tuple[formats.Problem, ...]]:
    view = view_run(run)
    return view, formats.problems_of_run(view, _run_incidents(run))


def _run_junit(run: Run, beside: bool) -> str:
    view, problems = _run_problems(run)
    stages = [(f"{s.stage}: {s.check}", s.found, s.verdict.tone != "bad") for s in view.stages]
    return formats.junit(view.name, problems, stages=stages)


def _incident_junit(view: IncidentView, beside: bool) -> str:
    return formats.junit(f"step {view.incident.step}", formats.problems_of_incident(view.incident))


_incident_formats: Mapping[str, Callable[[IncidentView, bool], str]] = {
    "html": lambda view, beside: incident_page(view, links=beside),
    "md": lambda view, beside: formats.incident_markdown(view),
    "json": lambda view, beside: formats.incident_json(view),
    "junit": _incident_junit,
    "github": lambda view, beside: formats.github(formats.problems_of_incident(view.incident)),
    "sarif": lambda view, beside: formats.sarif(formats.problems_of_incident(view.incident)),
}
_run_formats: Mapping[str, Callable[[Run, bool], str]] = {
    "html": lambda run, beside: run_page(view_run(run), links=beside),
    "md": lambda run, beside: formats.run_markdown(view_run(run)),
    "json": lambda run, beside: formats.run_json(view_run(run)),
    "junit": _run_junit,
    "github": lambda run, beside: formats.github(_run_problems(run)[1]),
    "sarif": lambda run, beside: formats.sarif(_run_problems(run)[1]),
}
