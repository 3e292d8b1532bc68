"""Every fault, each in a process of its own, as many at a time as there are processors.

A fault that ends its process, or leaves a thread setting or a random state behind, does so for itself alone.

Picture         what one of them printed and found
show_all        run them, and give the pictures in the order that was asked for
write_summary   a table of all
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nantrap.record import write_atomically
from nantrap.systems.paper import DOCUMENT, REPORT
from nantrap.systems.system import Fault, System


@dataclass(frozen=True, slots=True)
class Picture:
    """One fault as its process showed it.

    Attributes:
        system: its name.
        fault: its name.
        output: what was written to stdout.
        errors: what was written to stderr: the diagnostics.
        code: the exit code; 0 if the guard said what it was expected to.
        document: the showcase as plain values; empty if the process died before it was written.
        seconds: how long the process lived.
    """

    system: str
    fault: str
    output: str
    errors: str
    code: int
    document: dict[str, Any]
    seconds: float

    @property
    def died(self) -> bool:
        """Whether the process ended without a result."""
        return not self.document


def show_all(
    chosen: Sequence[tuple[System, Fault]],
    *,
    steps: int,
    seed: int,
    folder: Path,
    at_a_time: int,
    begun: Callable[[str], None] = lambda name: None,
) -> Iterator[Picture]:
    """Run these faults.

    Args:
        chosen: systems and faults, in the order in which they are shown.
        steps: of each run.
        seed: of all runs.
        folder: where each gets `SYSTEM/FAULT`.
        at_a_time: how many processes.
        begun: is told the name of each as it begins.
    """

    def one(system: System, fault: Fault) -> Picture:
        begun(f"{system.name} {fault.name}")
        return _show_alone(system, fault, steps=steps, seed=seed, folder=folder)

    with ThreadPoolExecutor(at_a_time) as pool:
        waiting = [pool.submit(one, system, fault) for system, fault in chosen]
        try:
            for each in waiting:
                yield each.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C: those that run get it too


def write_summary(pictures: Sequence[Picture], folder: Path) -> tuple[Path, str]:
    """A line a fault, with links to their reports: the path of the file, and what it ends with."""
    lines = [
        "# Every fault",
        "",
        "| system | fault | cause | proven | as expected | s |",
        "| " + " | ".join(["---"] * 6) + " |",
    ]
    for each in pictures:
        document = each.document
        cause = document.get("cause") or ("none" if document else "")
        proven = "yes" if document.get("proven") else ""
        expected = "died" if each.died else "yes" if each.code == 0 else f"no: {document['expected_cause'] or 'none'}"
        link = f"[{each.fault}]({each.system}/{each.fault}/{REPORT})" if document else each.fault
        lines.append(f"| {each.system} | {link} | {cause} | {proven} | {expected} | {each.seconds:.0f} |")
    good = sum(each.code == 0 for each in pictures)
    longest = max(each.seconds for each in pictures)
    faults = "1 fault" if len(pictures) == 1 else f"{len(pictures)} faults"
    text = f"{faults}, {good} named as expected, longest {longest:.0f} s"
    for each in pictures:
        if each.code:
            last = each.errors.strip().rpartition("\n")[2]
            text += f"\n{each.system} {each.fault}: {f'exit code {each.code}: {last}' if each.died else 'not named'}"
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / REPORT
    write_atomically(report, "\n".join([*lines, "", text]) + "\n")
    return report, text


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _show_alone(system: System, fault: Fault, *, steps: int, seed: int, folder: Path) -> Picture:
    command = [sys.executable, "-m", "nantrap", "demo", system.name, "--fault", fault.name]
    began = time.perf_counter()
    done = subprocess.run(
        [*command, "--steps", str(steps), "--seed", str(seed), "--run-dir", str(folder)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    written = folder / system.name / fault.name / DOCUMENT
    document = json.loads(written.read_text(encoding="utf-8")) if written.is_file() else {}
    return Picture(
        system.name, fault.name, done.stdout, done.stderr, done.returncode, document, time.perf_counter() - began
    )
