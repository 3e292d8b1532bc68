"""`nantrap demo`: a training system with one of its historic faults, run plain, with what was tried, and guarded."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from nantrap.errors import UsageError

if TYPE_CHECKING:
    from nantrap.systems.showcase import Showcase
    from nantrap.systems.system import Fault, System


class Demo:
    """Train a small system that goes NaN: plain, with the remedies that were tried, and under the guard.

    SYSTEM is one of five small but faithful training projects; --fault switches on one of the faults the real project
    had. All runs start from the same seed, the diagnostic is shown as it happens, and a table compares them; the last
    line says where the incident is. Without SYSTEM, all systems and faults are listed. Exit code 0: the guard named the
    expected cause; 1: it did not; 2: wrong use.
    """

    name = "demo"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("system", nargs="?", metavar="SYSTEM", help="the system; without it, the list of all")
        parser.add_argument("--fault", metavar="NAME", help="the fault (default: the system's most telling one)")
        parser.add_argument("--all", action="store_true", help="every fault of the system, or of all systems")
        parser.add_argument("--steps", type=int, default=60, metavar="N", help="steps of each run (default: 60)")
        parser.add_argument("--seed", type=int, default=8, metavar="N", help="the same for all runs (default: 8)")
        parser.add_argument(
            "--run-dir", type=Path, metavar="DIR", help="where journal and incidents go (default: a temporary folder)"
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")

    def run(self, arguments: argparse.Namespace) -> int:
        from nantrap.systems import SYSTEMS, load_system

        if arguments.steps < 1:
            raise UsageError(f"--steps {arguments.steps}: at least 1")
        if arguments.all and arguments.fault:
            raise UsageError("--all and --fault: choose one")
        chosen = [load_system(name) for name in ([arguments.system] if arguments.system else SYSTEMS)]
        if arguments.system is None and not arguments.all:
            if arguments.fault:
                raise UsageError(f"--fault {arguments.fault}: of which system? `nantrap demo SYSTEM --fault NAME`")
            _list(chosen, as_json=arguments.json)
            return 0
        import torch

        torch.set_num_threads(1)  # the systems are small: more threads only wait for each other
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        folder = _free_folder(arguments.run_dir)
        shown = [
            _show(console, system, fault, folder / system.name / fault.name, arguments)
            for system in chosen
            for fault in _faults(system, arguments)
        ]
        if arguments.json:
            documents = [each.to_dict() for each in shown]
            print(_as_json(documents if arguments.all else documents[0]))
        console.print(_place(shown[-1], folder))
        return 0 if all(each.named for each in shown) else 1


def _faults(system: System, arguments: argparse.Namespace) -> tuple[Fault, ...]:
    if arguments.all:
        return system.faults
    return (system.fault(arguments.fault) if arguments.fault else system.faults[0],)


def _show(console: Console, system: System, fault: Fault, run_dir: Path, arguments: argparse.Namespace) -> Showcase:
    from nantrap.systems.showcase import show

    console.print(f"{system.name}, {fault.name}: {fault.title}", style="bold")
    console.print(fault.story, markup=False)
    with console.status("training") as status:  # the guard's diagnostic is printed above it

        def say(name: str, story: str) -> None:
            console.print(f"{name}: {story}", style="dim", markup=False)
            status.update(f"training: {name}")

        shown = show(system, fault, steps=arguments.steps, seed=arguments.seed, run_dir=run_dir, say=say)
    out = console if arguments.json else Console(highlight=False, soft_wrap=True)
    out.print()
    out.print(f"{system.name}, {fault.name}: {arguments.steps} steps each, seed {arguments.seed}", style="bold")
    out.print(shown.table(), soft_wrap=False)
    out.print()
    told = [("plain", fault.damage), *((each.name, each.result) for each in fault.remedies), ("nantrap", fault.answer)]
    for name, what in [*shown.remarks(), *told]:
        out.print(f"{name}: {what}", markup=False)
    return shown


def _place(shown: Showcase, folder: Path) -> str:
    """The incident's bundle, or the folder of the journal if there was no incident."""
    bundle = shown.incident.bundle if shown.incident else None
    return f"incident: {bundle}" if bundle else f"journal: {folder}"


def _free_folder(wanted: Path | None) -> Path:
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix="nantrap-demo-"))
    if wanted.exists() and any(wanted.iterdir()):
        raise UsageError(f"--run-dir {wanted}: not empty; nothing is overwritten, give a new folder")
    return wanted


def _list(systems: list[System], *, as_json: bool) -> None:
    if as_json:
        print(_as_json([_entry(system) for system in systems]))
        return
    widest = max(len(fault.name) for system in systems for fault in system.faults)
    for system in systems:
        print(f"{system.name}: {system.title}")
        for fault in system.faults:
            print(f"  {fault.name:<{widest}}  {fault.title}")
    print("\n`nantrap demo SYSTEM --fault NAME` runs one")


def _as_json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)


def _entry(system: System) -> dict[str, Any]:
    faults = [
        {"name": f.name, "title": f.title, "story": f.story, "remedies": [r.name for r in f.remedies], "cause": f.cause}
        for f in system.faults
    ]
    return {"name": system.name, "title": system.title, "quality": system.quality, "faults": faults}
