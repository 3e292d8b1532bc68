"""An incident or a run, shown to a person. Pure functions of what was recorded; opens without torch."""

from nantrap.report.curves import Curve, draw_curves
from nantrap.report.diagnostic import diagnostic, fingerprint, one_line
from nantrap.report.lines import write_line
from nantrap.report.terminal import render_incident
from nantrap.report.visible import visible

__all__ = [
    "Curve",
    "diagnostic",
    "draw_curves",
    "fingerprint",
    "one_line",
    "render_incident",
    "visible",
    "write_line",
]
