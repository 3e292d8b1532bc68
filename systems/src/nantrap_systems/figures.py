"""How close a guarded run ends to the clean one, for every fault: `python -m nantrap_systems.figures`.

Every fault is run in all its ways from several seeds, as `nantrap demo` does. The table has a row for each fault: the
figure of its system (mean over seeds) for the clean run, the plain one, the best remedy that was tried, and nantrap.
Where nantrap left steps out, a clean run of as many steps as it took shows what the missing steps alone cost.
Runs are kept in a file of JSON lines, so that a measurement that was broken off continues, and `--table` prints what
the file holds without a run.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from nantrap.errors import MissingExtraError, UsageError
from nantrap_systems import SYSTEMS, load_system
from nantrap_systems.measuring import Result, demo_run, measure
from nantrap_systems.showcase import show
from nantrap_systems.system import Fault, System

STEPS, SEEDS = 60, (8, 9, 10)
SHORTER = "clean, as many steps"
NOT_REMEDIES = ("clean", SHORTER, "plain", "nantrap")


def measure_all(path: Path, *, steps: int, seeds: Sequence[int], only: Sequence[str] = ()) -> None:
    """Run what the file does not hold yet, and add a line for each fault and seed."""
    done = {(row["system"], row["fault"], row["seed"]) for row in read_rows(path)}
    for name in SYSTEMS:
        system = load_system(name)
        for fault in system.faults:
            for seed in seeds:
                if (name, fault.name, seed) in done or (only and fault.name not in only):
                    continue
                try:
                    shown = show(system, fault, steps=steps, seed=seed, quiet=True)
                except (MissingExtraError, UsageError) as error:
                    sys.stderr.write(f"{name} {fault.name} is left out: {error}\n")
                    break
                results = (*shown.results, *shorter(system, fault, shown.result("nantrap"), seed=seed))
                fields = ("quality", "held_out_loss", "applied", "steps", "rollbacks", "stopped", "state_finite")
                ways = {each.name: {field: _plain(getattr(each, field)) for field in fields} for each in results}
                row = {"system": name, "fault": fault.name, "seed": seed, "named": shown.named, "ways": ways}
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")


def shorter(system: System, fault: Fault, guarded: Result, *, seed: int) -> tuple[Result, ...]:
    """The clean run that ends after as many steps as the guarded one applied.

    There is none if the guarded run took all steps or none, if it was stopped, for several processes, and for a fault
    of the loop, where it is the loop's GradScaler that leaves steps out.
    """
    if guarded.applied in (0, guarded.steps) or guarded.stopped or fault.processes > 1 or fault.loop:
        return ()
    run = demo_run(system, fault, None, guarded.steps, repaired=True, seed=seed)
    return (measure(SHORTER, run, guarded.applied)[0],)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """What a file holds; nothing if there is none."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def table_of(rows: Iterable[dict[str, Any]]) -> str:
    """The table as Markdown: figures are means over the seeds; the best remedy is the one with the best mean."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["system"], row["fault"]].append(row["ways"])
    lines = [
        "| system | fault | seeds | clean | plain | best remedy | nantrap | applied | clean, as many steps |",
        "| " + " | ".join(["---"] * 9) + " |",
    ]
    for (system, fault), ways in found.items():
        names = [name for name in ways[0] if name not in NOT_REMEDIES]
        best = max(names, key=lambda name: _mean(ways, name), default=None)
        remedy = f"{_mean(ways, best):.1%} {best}" if best is not None else ""
        applied = fmean(way["nantrap"]["applied"] / way["nantrap"]["steps"] for way in ways)
        stopped = sum(way["nantrap"]["stopped"] for way in ways)
        cells = [
            system,
            f"`{fault}`",
            str(len(ways)),
            f"{_mean(ways, 'clean'):.1%}",
            f"{_mean(ways, 'plain'):.1%}",
            remedy,
        ]
        guarded = f"{_mean(ways, 'nantrap'):.1%}" + (" (stopped)" if stopped else "")
        like = fmean(way.get(SHORTER, way["clean"])["quality"] for way in ways)
        compared = f"{like:.1%}" if any(SHORTER in way for way in ways) else ""
        lines.append("| " + " | ".join([*cells, guarded, f"{applied:.0%}", compared]) + " |")
    return "\n".join(lines)


def _mean(ways: Sequence[dict[str, Any]], name: str) -> float:
    return fmean(way[name]["quality"] for way in ways)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--file", type=Path, default=Path("figures.jsonl"), help="the runs (default: figures.jsonl)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of each run (default: {STEPS})")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help=f"(default: {' '.join(map(str, SEEDS))})")
    parser.add_argument("--fault", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if not options.table:
        measure_all(options.file, steps=options.steps, seeds=options.seeds, only=options.fault)
    sys.stdout.write(table_of(read_rows(options.file)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
