"""The pages of the systems: every figure, table and picture in them is written by this file.

`make pictures` runs each system's most telling fault as `nantrap demo` does, draws the losses of its runs, and writes
the diagnostic and the table into the page. `make tables` only writes the tables of faults, which need no run. What is
between `<!-- begin NAME -->` and `<!-- end NAME -->` is replaced, the rest of a page is written by hand.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch

from nantrap.report import render_incident
from nantrap.systems import SYSTEMS, load_system
from nantrap.systems.showcase import Showcase, show
from nantrap.systems.showcase_files import picture_of
from nantrap.systems.system import Fault, System

HERE = Path(__file__).parent
PAGES, PICTURES = HERE / "systems", HERE / "pictures"
STEPS, SEED = 60, 8


def faults_of(system: System) -> str:
    """The table of a system's faults."""
    lines = ["| fault | plain | what was tried | nantrap | cause |", "| --- | --- | --- | --- | --- |"]
    for fault in system.faults:
        tried = " ".join(f"**{each.name}**: {each.result}" for each in fault.remedies)
        cells = [f"`{fault.name}`: {fault.title}", fault.damage, tried, fault.answer, cause_of(fault)]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    named = sum(fault.cause is not None for fault in system.faults)
    return "\n".join([*lines, "", f"{len(system.faults)} faults, {named} with a cause that the guard names."])


def cause_of(fault: Fault) -> str:
    """The cause that the guard names, or who tells the fault instead."""
    if fault.cause is not None:
        return f"`{fault.cause}`"
    return {"guard": "none: prevented, or a clear error", "resume check": "none: told by `check_resume`"}.get(
        fault.reported_by or "", "not diagnosed"
    )


def run_of(shown: Showcase) -> str:
    """What a fault showed: the diagnostic, the table, the picture."""
    system, fault = shown.system, shown.fault
    lines = [f"`nantrap demo {system.name} --fault {fault.name}`, {STEPS} steps each, seed {SEED}:", ""]
    if shown.incident is not None:
        lines += ["```text", re.sub(r"/\S*?/src/nantrap/", "src/nantrap/", render_incident(shown.incident)), "```", ""]
    headings = shown.headings
    lines += ["| " + " | ".join(headings) + " |", "| " + " | ".join("---" for _ in headings) + " |"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in shown.rows()]
    return "\n".join([*lines, "", f"![The training loss of each run, step by step](../pictures/{system.name}.svg)"])


def put(text: str, name: str, content: str) -> str:
    """A page with what is between the marks of this name replaced."""
    pattern = re.compile(f"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.S)
    if not pattern.search(text):
        raise ValueError(f"the page has no marks for {name}")
    return pattern.sub(lambda found: f"{found[1]}{content}\n{found[2]}", text)


def main() -> None:
    """Write the pages, with runs or without."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--tables", action="store_true", help="only the tables of faults; nothing is trained")
    parser.add_argument("systems", nargs="*", default=SYSTEMS, help="which ones (default: all)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    PICTURES.mkdir(exist_ok=True)
    for name in options.systems:
        system, path = load_system(name), PAGES / f"{name}.md"
        text = put(path.read_text(encoding="utf-8"), "faults", faults_of(system))
        if not options.tables:
            shown = show(system, system.faults[0], steps=STEPS, seed=SEED, quiet=True)
            text = put(text, "run", run_of(shown))
            (PICTURES / f"{name}.svg").write_text(picture_of(shown), encoding="utf-8")
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
