"""An incident or a run, shown to a person. Pure functions of what was recorded; opens without torch."""

from nantrap.report.lines import write_line
from nantrap.report.terminal import one_line, render_incident

__all__ = ["one_line", "render_incident", "write_line"]
