"""What `nantrap demo` does: list the systems, show one fault, or show all of them."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from nantrap.errors import MissingExtraError, UsageError
from nantrap_systems import SYSTEMS, load_system

if TYPE_CHECKING:
    from nantrap_systems.gallery import Picture
    from nantrap_systems.system import Fault, System


def run(arguments: argparse.Namespace) -> int:
    """List the systems, or show one fault or all of them; 0 if the cause of each was named."""
    if arguments.steps < 1:
        raise UsageError(f"--steps {arguments.steps}: at least 1")
    if arguments.jobs is not None and arguments.jobs < 1:
        raise UsageError(f"--jobs {arguments.jobs}: at least 1")
    if arguments.all and arguments.fault:
        raise UsageError("--all and --fault: choose one")
    if arguments.system is None and not arguments.all:
        if arguments.fault:
            raise UsageError(f"--fault {arguments.fault}: of which system? `nantrap demo SYSTEM --fault NAME`")
        _list(as_json=arguments.json)
        return 0
    chosen = [load_system(name) for name in ([arguments.system] if arguments.system else SYSTEMS)]
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    folder = arguments.run_dir or Path(tempfile.mkdtemp(prefix="nantrap-demo-"))
    faults = [(system, fault) for system in chosen for fault in _faults(system, arguments)]
    if arguments.all:
        faults = _possible(faults, console)
    for system, fault in faults:
        _refuse_used(folder / system.name / fault.name)
    if arguments.all:
        return _show_all(console, faults, folder, arguments)
    return _show(console, *faults[0], folder / faults[0][0].name / faults[0][1].name, arguments)


def _faults(system: System, arguments: argparse.Namespace) -> tuple[Fault, ...]:
    if arguments.all:
        return system.faults
    return (system.fault(arguments.fault) if arguments.fault else system.faults[0],)


def _possible(faults: list[tuple[System, Fault]], console: Console) -> list[tuple[System, Fault]]:
    """Those that can be run here; of the others it is said why they are left out."""
    kept = []
    for system, fault in faults:
        try:
            fault.check_possible()
            kept.append((system, fault))
        except (MissingExtraError, UsageError) as error:
            console.print(f"{system.name} {fault.name} is left out: {error}", markup=False)
    return kept


def _refuse_used(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"--run-dir: {folder} is not empty; nothing is overwritten, give a new folder")


def _show(console: Console, system: System, fault: Fault, run_dir: Path, arguments: argparse.Namespace) -> int:
    """Show one fault: its story, the runs without and with the guard and with remedies, and the report."""
    import torch

    from nantrap.report import write_run_report
    from nantrap_systems.measuring import processors
    from nantrap_systems.showcase import reported_before, show, write_report

    torch.set_num_threads(1)  # the systems are small: more threads would only wait for each other
    console.print(f"{system.name}, {fault.name}: {fault.title}", style="bold")
    console.print(fault.story, markup=False, soft_wrap=False)
    with console.status("training") as status:  # the guard's diagnostic is printed above it

        def say(name: str, story: str) -> None:
            console.print(f"{name}: {story}", style="dim", markup=False, soft_wrap=False)
            status.update(f"training: {name}")

        shown = show(
            system,
            fault,
            steps=arguments.steps,
            seed=arguments.seed,
            run_dir=run_dir,
            say=say,
            at_a_time=arguments.jobs or processors(),
            before=lambda: reported_before(system, fault, seed=arguments.seed),
        )
    out = console if arguments.json else Console(highlight=False, soft_wrap=True)
    out.print()
    out.print(f"{system.name}, {fault.name}: {arguments.steps} steps each, seed {arguments.seed}", style="bold")
    out.print(shown.table(), soft_wrap=False)
    out.print()
    for name, what in shown.outcomes():
        out.print(f"{name}: {what}", markup=False, soft_wrap=False)
    named = shown.incident.causes[:1] if shown.incident is not None else ()
    explained = "".join(f"`nantrap explain {cause.code}` says more about this cause. " for cause in named)
    out.print(f"\n{explained}`nantrap run train.py` guards a script of your own.", markup=False, soft_wrap=False)
    report = write_report(shown, run_dir, steps=arguments.steps, seed=arguments.seed)
    if arguments.json:
        print(_as_json(shown.to_dict()))
    if shown.incident is not None and shown.incident.bundle:
        console.print(f"incident: {shown.incident.bundle}", markup=False)
    console.print(f"comparison: {report}", markup=False)
    page = write_run_report(run_dir)  # of the guarded run: its curves, incidents and fixes
    console.print(f"report: {page or report}", markup=False)
    return 0 if shown.named else 1


def _show_all(console: Console, faults: list[tuple[System, Fault]], folder: Path, arguments: argparse.Namespace) -> int:
    """Show every fault in a process of its own, several in parallel, then one summary."""
    from nantrap_systems.gallery import show_all, write_summary
    from nantrap_systems.measuring import processors

    pictures: list[Picture] = []
    at_a_time = arguments.jobs or processors()
    with console.status(f"{len(faults)} faults, {at_a_time} at a time") as status:

        def begun(name: str) -> None:
            status.update(f"{len(pictures)} of {len(faults)} shown; training: {name}")

        for picture in show_all(
            faults, steps=arguments.steps, seed=arguments.seed, folder=folder, at_a_time=at_a_time, begun=begun
        ):
            pictures.append(picture)
            console.out(picture.errors, end="", highlight=False)
            if not arguments.json:
                print(picture.output, flush=True)
    report, text = write_summary(pictures, folder)
    if arguments.json:
        print(_as_json([picture.document for picture in pictures]))
    (console if arguments.json else Console(highlight=False, soft_wrap=True)).print(text, markup=False)
    console.print(f"report: {report}", markup=False)
    return 0 if all(picture.code == 0 for picture in pictures) else 1


def _list(*, as_json: bool) -> None:
    """Print the systems and their faults, wrapped at the terminal's width."""
    from nantrap_systems.catalogue import read_catalogue, summary

    entries = read_catalogue()  # a file: no system is imported, nor torch
    if as_json:
        print(_as_json(entries))
        return
    columns = max(shutil.get_terminal_size().columns, 60)
    widest = max(len(fault["name"]) for entry in entries for fault in entry["faults"])
    for entry in entries:
        print(textwrap.fill(f"{entry['name']}: {entry['title']}", columns, subsequent_indent="  "))
        for fault in entry["faults"]:
            name = fault["name"]
            for line in textwrap.wrap(fault["title"], columns - widest - 4, break_long_words=False):
                print(f"  {name:<{widest}}  {line}")
                name = ""
    print("\n" + textwrap.fill(summary(entries), columns))
    print("`nantrap demo SYSTEM --fault NAME` runs one")


def _as_json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
