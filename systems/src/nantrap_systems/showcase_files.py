"""A showcase as files: what `nantrap demo` leaves in the run's folder.

report.md       the story, the table, the losses, what each run showed, and the diagnostic
losses.svg      the picture in it
showcase.json   the same for programs (`nantrap.demo/1`)
"""

from __future__ import annotations

import json
from pathlib import Path

from nantrap.record import write_atomically
from nantrap.report import render_incident
from nantrap_systems.curves import Curve, draw_curves
from nantrap_systems.showcase import Showcase

REPORT = "report.md"
DOCUMENT = "showcase.json"
PICTURE = "losses.svg"


def write_report(shown: Showcase, folder: Path, *, steps: int, seed: int) -> Path:
    """Write the three files; the path of the one for people."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(
        folder / DOCUMENT, json.dumps(shown.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    )
    write_atomically(folder / PICTURE, picture_of(shown))
    report = folder / REPORT
    write_atomically(report, report_of(shown, steps=steps, seed=seed))
    return report


def report_of(shown: Showcase, *, steps: int, seed: int) -> str:
    """The report as Markdown."""
    system, fault = shown.system, shown.fault
    lines = [f"# {system.name}, {fault.name}", "", f"{fault.title}.".capitalize(), "", fault.story, ""]
    lines += [f"{steps} steps each, seed {seed}: `nantrap demo {system.name} --fault {fault.name}`", ""]
    headings = shown.headings
    lines += ["| " + " | ".join(headings) + " |", "| " + " | ".join("---" for _ in headings) + " |"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in shown.rows()]
    lines += ["", f"![the loss of each run over its steps]({PICTURE})"]
    lines += ["", *(f"- **{name}**: {what}" for name, what in shown.stories())]
    if shown.incident is not None:
        lines += ["", "## The diagnosis", "", "```text", render_incident(shown.incident), "```"]
        if shown.incident.bundle:
            lines += ["", f"Bundle: `{shown.incident.bundle}`."]
    return "\n".join(lines) + "\n"


def picture_of(shown: Showcase) -> str:
    """The training loss of every run, step by step, as SVG."""
    curves = [
        Curve(
            result.name,
            result.losses,
            skipped=frozenset(result.skipped),
            strong=result.name == "nantrap",
            note="" if result.state_finite else "state NaN",
        )
        for result in shown.results
    ]
    return draw_curves(curves, title=f"{shown.system.name}, {shown.fault.name}: training loss")
