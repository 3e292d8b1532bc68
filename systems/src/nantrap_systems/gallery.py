"""Every fault, each in its own process, as many in parallel as there are cores.

A fault that ends its process, or leaves a thread setting or a random state behind, does not affect the others.

Picture         what one of them printed and found
show_all        run them, and give the pictures in the order that was asked for
write_summary   a table of all
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nantrap.cli import main
from nantrap.record import write_atomically
from nantrap_systems.measuring import start_method
from nantrap_systems.showcase import DOCUMENT, REPORT
from nantrap_systems.system import Fault, System


@dataclass(frozen=True, slots=True)
class Picture:
    """One fault as its process showed it.

    Attributes:
        system: its name.
        fault: its name.
        output: what was written to stdout.
        errors: what was written to stderr: the diagnostics.
        code: the exit code; 0 if the guard named the expected cause.
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
        begun: called with the name of each as it begins.
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
            pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C: the running processes get it too


def write_summary(pictures: Sequence[Picture], folder: Path) -> tuple[Path, str]:
    """One line per fault, with links to their reports: the path of the file, and its last line."""
    lines = [
        "# Every fault",
        "",
        "| system | fault | cause | proven | as expected | s |",
        "| " + " | ".join(["---"] * 6) + " |",
    ]
    for each in pictures:
        document = each.document
        cause = document.get("cause") or (document.get("reported_by") or "not diagnosed" if document else "")
        proven = "yes" if document.get("proven") else ""
        expected = "died" if each.died else "yes" if each.code == 0 else f"no: {document['expected_cause'] or 'none'}"
        link = f"[{each.fault}]({each.system}/{each.fault}/{REPORT})" if document else each.fault
        lines.append(f"| {each.system} | {link} | {cause} | {proven} | {expected} | {each.seconds:.0f} |")
    good = sum(each.code == 0 for each in pictures)
    longest = max(each.seconds for each in pictures)
    faults = "1 fault" if len(pictures) == 1 else f"{len(pictures)} faults"
    without = sum(not each.died and each.document["expected_cause"] is None for each in pictures)
    text = f"{faults}: {_named(pictures)} named, {without} without a cause; {good} as expected, longest {longest:.0f} s"
    for each in pictures:
        if each.code:
            last = each.errors.strip().rpartition("\n")[2]
            text += f"\n{each.system} {each.fault}: {f'exit code {each.code}: {last}' if each.died else 'not named'}"
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / REPORT
    write_atomically(report, "\n".join([*lines, "", text]) + "\n")
    return report, text


def _named(pictures: Sequence[Picture]) -> int:
    """How many causes were named as expected."""
    return sum(each.code == 0 and not each.died and bool(each.document["expected_cause"]) for each in pictures)


def _show_alone(system: System, fault: Fault, *, steps: int, seed: int, folder: Path) -> Picture:
    """Show one fault in a process of its own, and collect what it printed and wrote."""
    arguments = ["demo", system.name, "--fault", fault.name, "--jobs", "1"]
    arguments += ["--steps", str(steps), "--seed", str(seed)]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="nantrap-gallery-") as written:
        output, errors = Path(written, "out"), Path(written, "err")
        context: Any = multiprocessing.get_context(start_method())
        process = context.Process(target=_run, args=([*arguments, "--run-dir", str(folder)], output, errors))
        process.start()
        process.join()
        said = [path.read_text(encoding="utf-8", errors="replace") for path in (output, errors) if path.exists()]
    result = folder / system.name / fault.name / DOCUMENT
    document = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {}
    text, words = said if len(said) == 2 else ("", "")
    return Picture(system.name, fault.name, text, words, process.exitcode or 0, document, time.perf_counter() - began)


def _run(arguments: list[str], output: Path, errors: Path) -> None:
    """In the separate process: the command as a user would give it, its output in two files."""
    for path, number in ((output, 1), (errors, 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    code = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)
