"""Which historic faults of the five systems are seen before training begins, by `nantrap data` or `nantrap preflight`?

Every fault of every system is switched on, its first batches go through the data check as `module:dataset`, and model
and loss through the checks of the preflight. What the repaired system shows under the same settings does not count. The
result is a Markdown table, as in docs/before-training.md.

    python benchmarks/before_training.py
    python benchmarks/before_training.py --systems temi radiodiff
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch

from nantrap.doctor.data import check_data
from nantrap.doctor.preflight.checklist import preflight
from nantrap.doctor.preflight.report import PreflightCheck
from nantrap_systems import SYSTEMS, load_system

_MODULE = "batches_of_a_system"


def data_findings(run: Any, batches: int) -> dict[str, str]:
    """What the data check says of the first batches, by rule and field."""
    module = ModuleType(_MODULE)
    module.batches = lambda: [run.window(step)[0] for step in range(batches)]  # type: ignore[attr-defined]
    sys.modules[_MODULE] = module
    found = {}
    for each in check_data(f"{_MODULE}:batches").findings:
        first = ", ".join(map(str, each.indices[:3])) + (", ..." if len(each.indices) > 3 else "")
        where = f" in `{each.field}`" if each.field else ""
        found[f"{each.slug} {each.field}"] = f"`{each.slug}`{where}" + (f": batch {first}" if first else "")
    return found


def preflight_complaints(make: Any) -> dict[str, str]:
    """What the preflight says, by check and cause, without the margins and the drill of the guard."""
    found: dict[str, str] = {}

    def note(check: PreflightCheck) -> None:
        if check.status in ("warn", "fail"):
            cause = check.values.get("cause") or ""
            words = f"`{cause}`" if cause else check.message.partition(":")[0]
            found[f"{check.name} {cause}"] = f"{check.name}: {words}"

    preflight(make, guard=False, on_check=note)
    return found


Seen = tuple[dict[str, str], dict[str, str]]


def seen_before_training(name: str, fault: str, batches: int, *, repaired: bool) -> Seen:
    """What both say about a system with one fault, or about the repaired system under the same settings."""
    system = load_system(name)
    chosen = system.fault(fault)

    def make() -> dict[str, Any]:
        run = system.run(fault=chosen, repaired=repaired)
        return {"model": run.model, "optimizer": run.optimizer, "batch": run.window(0)[0], "loss": run.loss}

    return data_findings(system.run(fault=chosen, repaired=repaired), batches), preflight_complaints(make)


def row(name: str, fault: Any, healthy: Seen, batches: int) -> tuple[str, bool]:
    """A line of the table, and whether anything was seen."""
    cells = []
    for found, known in zip(seen_before_training(name, fault.name, batches, repaired=False), healthy, strict=True):
        new = [text for key, text in found.items() if key not in known]
        cells.append("<br>".join(new[:3]) + (f"<br>and {len(new) - 3} more" if len(new) > 3 else ""))
    return f"| {name} | `{fault.name}`: {fault.title} | {cells[0]} | {cells[1]} |", any(cells)


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--faults", nargs="*", help="only these")
    parser.add_argument("--batches", type=int, default=60)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    begin = time.perf_counter()
    seen = total = 0
    print("| system | fault | `nantrap data` | `nantrap preflight` |\n| --- | --- | --- | --- |", flush=True)
    for name in chosen.systems:
        healthy: dict[str, Seen] = {}
        for fault in load_system(name).faults:
            if chosen.faults and fault.name not in chosen.faults:
                continue
            settings = repr(sorted(fault.settings.items()))
            if settings not in healthy:
                healthy[settings] = seen_before_training(name, fault.name, chosen.batches, repaired=True)
            text, found = row(name, fault, healthy[settings], chosen.batches)
            print(text, flush=True)
            seen, total = seen + found, total + 1
    print(f"\n{seen} of {total} faults are seen before training; {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
