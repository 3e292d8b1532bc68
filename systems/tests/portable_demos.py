"""`nantrap demo --all` under settings that imitate other CPUs: the same causes must be named under each.

`python systems/tests/portable_demos.py`, or with `--results FOLDER` and `--setting NAME` one setting at a time: each
run compares all settings that the folder holds. Of each fault only the guarded run is made, with the steps and the seed
of `nantrap demo`: the others name no cause and take most of the time. `--whole` runs the command itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LONGEST = 6 * 3600
"""Seconds that one setting may take."""
SETTINGS: dict[str, dict[str, str]] = {
    "as it is": {},
    "oldest": {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"},
    "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
}
STEPS, SEED = 60, 8
"""The defaults of `nantrap demo`."""
Answer = tuple[str | None, ...]


def answers(document: list[Mapping[str, Any]]) -> dict[str, Answer]:
    """What was said of each fault: cause, module and operation, if it is proven, and if it is what was expected.

    A fault whose process died has an empty document and goes by its number.
    """
    found: dict[str, Answer] = {}
    for number, each in enumerate(document):
        if not each:
            found[f"fault {number}"] = ("its process died", None, None, "not proven", "not as expected")
            continue
        incident = each["incident"] or {}
        place = (incident.get("module"), incident.get("op"))
        verdict = ("proven" if each["proven"] else "not proven", "as expected" if each["named"] else "not as expected")
        found[f"{each['system']} {each['fault']}"] = (each["cause"], *place, *verdict)
    return found


def guarded() -> int:
    """In the process of one setting: the guarded run of every fault, as `nantrap demo --all --json` prints it."""
    import torch

    from nantrap_systems import SYSTEMS, load_system
    from nantrap_systems.measuring import Job, measure, measure_outside, measure_together
    from nantrap_systems.showcase import Showcase

    torch.set_num_threads(1)
    document = []
    for system in map(load_system, SYSTEMS):
        for fault in system.faults:
            fault.check_possible()
            job = Job(
                name="nantrap",
                system=system.name,
                fault=fault.name,
                remedy=None,
                repaired=False,
                guarded=True,
                steps=STEPS,
                seed=SEED,
                changes={},
                run_dir=None,
                quiet=True,
            )
            if fault.processes > 1:
                result, incident, notes = measure_together(job, fault.processes)
            elif fault.loop:
                result, incident, notes = measure_outside(job)
            else:
                training = job.make()
                result, incident = measure(job.name, training, job.steps, guarded=True, quiet=True)
                notes = training.notes
            document.append(Showcase(system, fault, (result,), incident, notes).to_dict())
            print(f"{system.name} {fault.name}: {document[-1]['cause']}", file=sys.stderr, flush=True)
    print(json.dumps(document))
    return 0


def run(setting: str, results: Path, *, whole: bool) -> None:
    """All faults under one setting; the answers go to the file `results`, as JSON."""
    environment = {**os.environ, **SETTINGS[setting]}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "nantrap", "demo", "--all", "--json", "--run-dir", folder]
        command = command if whole else [sys.executable, __file__, "--guarded"]
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=False, timeout=_LONGEST
        )
    results.write_text(done.stdout, encoding="utf-8")


def tell(everywhere: Mapping[str, Mapping[str, Answer]]) -> int:
    """Print each setting's figures and every fault whose answer differs or is not the expected one. 1 if any, or 0."""
    bad = 0
    for name, found in everywhere.items():
        wrong = sorted(fault for fault, answer in found.items() if answer[-1] != "as expected")
        named = sum(answer[0] is not None and answer[-1] == "as expected" for answer in found.values())
        proven = sum("proven" in answer for answer in found.values())
        print(f"{name}: {len(found)} faults, {named} causes named, {proven} proven, {len(wrong)} not as expected")
        for fault in wrong:
            print(f"  {fault}: {found[fault]}")
        bad += len(wrong)
    faults = sorted({fault for found in everywhere.values() for fault in found})
    different = [fault for fault in faults if len({found.get(fault) for found in everywhere.values()}) > 1]
    print(f"{len(faults)} faults, {len(everywhere)} settings, {len(different)} with more than one answer")
    for fault in different:
        print(f"  {fault}: " + "; ".join(f"{name}: {found.get(fault)}" for name, found in everywhere.items()))
    return 1 if bad or different else 0


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 if under every setting each fault has the expected answer, and the same one everywhere; 1 if not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--setting", action="append", choices=list(SETTINGS), help="only this one; may be repeated")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="keep answers here, compare with those in it")
    parser.add_argument("--whole", action="store_true", help="`nantrap demo --all` with all its runs")
    parser.add_argument("--guarded", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.guarded:
        return guarded()
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = options.results or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        kept = {name: folder / f"{name}.json" for name in SETTINGS}
        for name in options.setting or SETTINGS:
            began = time.perf_counter()
            run(name, kept[name], whole=options.whole)
            print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
        documents = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in kept.items() if file.exists()}
    return tell({name: answers(document) for name, document in documents.items()})


if __name__ == "__main__":
    raise SystemExit(main())
