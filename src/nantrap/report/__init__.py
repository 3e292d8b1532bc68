"""An incident or a run, shown to a person. Pure functions of what was recorded; opens without torch."""

from nantrap.report.curves import Curve, draw_curves
from nantrap.report.lines import write_line
from nantrap.report.terminal import one_line, render_incident

__all__ = ["Curve", "draw_curves", "one_line", "render_incident", "write_line"]
