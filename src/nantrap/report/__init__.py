"""An incident or a run, shown to a person. Pure functions of what was recorded; opens without torch.

README.md says in which order to read the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap._lazy import lazy_names
from nantrap.incident.wording import visible
from nantrap.report.diagnostics import diagnostic, fingerprint, one_line
from nantrap.report.page_queue import begin_pages, wait_for_pages, write_page_later
from nantrap.report.terminal import VERBOSE, render_incident, wants_details, write_line

if TYPE_CHECKING:
    from nantrap.report.writing import write_incident_report as write_incident_report
    from nantrap.report.writing import write_run_report as write_run_report

__all__ = [
    "VERBOSE",
    "begin_pages",
    "diagnostic",
    "fingerprint",
    "one_line",
    "render_incident",
    "visible",
    "wait_for_pages",
    "wants_details",
    "write_incident_report",
    "write_line",
    "write_page_later",
    "write_run_report",
]

# templates and numpy are imported only when a report is written
__getattr__ = lazy_names(__name__, {"writing": ["write_incident_report", "write_run_report"]})
