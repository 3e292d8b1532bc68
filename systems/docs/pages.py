"""The pages of the systems: every figure, table and picture in them is written by this file.

`make pictures` runs each system's most telling fault as `nantrap demo` does, draws the losses of its runs, and writes
the diagnostic and the table into the page; it types the commands of the page and writes what they print. `make tables`
only writes the tables of faults, which need no run. What is between `<!-- begin NAME -->` and `<!-- end NAME -->` is
replaced, the rest of a page is written by hand:

    faults          the table of all faults
    run             the most telling fault: diagnostic, table, picture
    run FAULT       another one, its notes and its table
    console         the commands of `CONSOLE`, and what they print
    figures         the baselines of the system, and its model before and after training
    table           of `figures.md`: every fault in all its ways, from `figures.jsonl`
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from nantrap.cli import main as nantrap
from nantrap.report import render_incident
from nantrap_systems import SYSTEMS, load_system
from nantrap_systems.baselines import table_of as baselines_of
from nantrap_systems.figures import read_rows
from nantrap_systems.figures import table_of as all_faults
from nantrap_systems.script import main as train
from nantrap_systems.showcase import Showcase, picture_of, show
from nantrap_systems.system import Fault, System

PAGES = Path(__file__).parent
PICTURES = PAGES / "pictures"
FIGURES = PAGES / "figures.jsonl"
STEPS, SEED = 60, 8
CONSOLE = {
    "radiodiff": (
        "train --steps 40 --save-every 10 --run-dir runs/a",
        "train --set trainer.resume_milestone=4 --lr 1e-3 --steps 20 --save-every 10 --run-dir runs/a",
    ),
    "latentdlm": (
        "train --steps 50 --run-dir train_logs",
        "tail -n 2 train_logs/training_log.jsonl",
        "grep -E 'loss|NaN|ERROR' train_logs/latest.log",
    ),
    "restran_mhc": (
        "train --model restran_mhc --mhc-n 2 --lr 0.01 --epochs 6 --run-dir runs/a --guard",
        "nantrap check runs/a --expect stages.yaml",
        "train --run-dir runs/a --resume last_good --epochs 1 --lr 0.0001",
    ),
    "temi": (
        "train --steps 60 --cache-dir data/embeddings",
        "train --force-recompute --cache-dir data/embeddings --steps 1",
    ),
    "pixeldlm": ("train --steps 50 --run-dir runs/a",),
}
"""What is typed: `train` is a module of the system; its `stages.yaml`, if it has one, is in the folder."""
_PROGRESS = r"^Ep .* step (\d+)/(?!\1,)\d+,.*\n"
"""A line of progress before the last step: a slow machine prints more of them."""


def faults_of(system: System) -> str:
    """The table of a system's faults."""
    lines = ["| fault | plain | what was tried | nantrap | cause |", "| --- | --- | --- | --- | --- |"]
    for fault in system.faults:
        tried = " ".join(f"**{each.name}**: {each.result}" for each in fault.remedies)
        cells = [f"`{fault.name}`: {fault.title}", fault.damage, tried, fault.answer, cause_of(fault)]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    named = sum(fault.cause is not None for fault in system.faults)
    silent = sum(fault.cause is None and fault.reported_by is None for fault in system.faults)
    summary = f"{len(system.faults)} faults: {named} with a cause that the guard names, {silent} not diagnosed."
    return "\n".join([*lines, "", summary])


def cause_of(fault: Fault) -> str:
    """The cause that the guard names, or who tells the fault instead."""
    if fault.cause is not None:
        return f"`{fault.cause}`"
    return {
        "guard": "none: prevented, or a clear error",
        "summary": "none: asked about in the summary of `nantrap run`",
        "resume check": "none: found by `check_resume`",
        "doctor": f"none: found by `nantrap doctor` ({fault.code})",
        "data check": f"none: found by `nantrap data` ({fault.code})",
    }.get(fault.reported_by or "", "not diagnosed")


def run_of(shown: Showcase, *, main: bool = True) -> str:
    """What a fault showed: the diagnostic, the table, and for the main one the picture."""
    system, fault = shown.system, shown.fault
    lines = [f"`nantrap demo {system.name} --fault {fault.name}`, {STEPS} steps each, seed {SEED}:", ""]
    if shown.incident is not None:
        lines += ["```text", re.sub(r"/\S*?/systems/src/", "systems/src/", render_incident(shown.incident)), "```", ""]
    elif shown.notes:
        lines += ["```text", *shown.notes, "```", ""]
    headings = shown.headings
    lines += ["| " + " | ".join(headings) + " |", "| " + " | ".join("---" for _ in headings) + " |"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in shown.rows()]
    picture = ["", f"![The training loss of each run, step by step](pictures/{system.name}.svg)"]
    return "\n".join([*lines, *(picture if main else [])])


def console_of(name: str) -> str:
    """The commands of a page, typed one after the other in an empty folder, and what they print without speeds."""
    system, lines, here = load_system(name), ["```console"], Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        for plan in system.config.parent.glob("stages.yaml"):
            shutil.copy(plan, folder)
        os.chdir(folder)
        try:
            for command in CONSOLE[name]:
                program, *arguments = shlex.split(command)
                module = program == "train"
                lines.append("$ " + (f"python -m nantrap_systems.{name}." if module else "") + command)
                said = io.StringIO()
                with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                    if program == "train":
                        train(system, arguments)
                    elif program == "nantrap":
                        nantrap(arguments)
                    else:
                        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
                        said.write(done.stdout + done.stderr)
                in_time = re.sub(_PROGRESS, "", said.getvalue(), flags=re.M)
                lines += re.sub(r", [\d.]+ it/s", "", in_time).splitlines()
        finally:
            os.chdir(here)
    return "\n".join([*lines, "```"])


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
    page = PAGES / "figures.md"
    page.write_text(put(page.read_text(encoding="utf-8"), "table", all_faults(read_rows(FIGURES))), encoding="utf-8")
    for name in options.systems:
        system, path = load_system(name), PAGES / f"{name}.md"
        text = put(path.read_text(encoding="utf-8"), "faults", faults_of(system))
        if not options.tables:
            text = put(text, "console", console_of(name))
            text = put(text, "figures", baselines_of(name))
            shown = show(system, system.faults[0], steps=STEPS, seed=SEED, quiet=True)
            text = put(text, "run", run_of(shown))
            (PICTURES / f"{name}.svg").write_text(picture_of(shown), encoding="utf-8")
            for fault in re.findall(r"<!-- begin run (\w+) -->", text):
                other = show(system, system.fault(fault), steps=STEPS, seed=SEED, quiet=True)
                text = put(text, f"run {fault}", run_of(other, main=False))
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
