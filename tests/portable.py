"""The tests under settings that imitate other CPUs: `make test-portable`, or `python tests/portable.py PATHS...`.

oneDNN, ATen and MKL choose their kernels by what the CPU offers, and another kernel rounds differently. Environment
variables make them choose as on an older CPU. No test may change its outcome between any two settings.

A run takes about an hour on two cores. `--results FOLDER` keeps every setting's outcomes there, so that the settings
can be run one by one: each run compares all settings that the folder holds. `--shuffle SEED` gives every setting
another random order.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from pathlib import Path

_LONGEST = 6 * 3600
"""Seconds that one setting may take."""
SETTINGS: dict[str, dict[str, str]] = {
    "as it is": {},
    "oneDNN SSE41": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    "oneDNN AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "oneDNN AVX512_CORE": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "ATen default": {"ATEN_CPU_CAPABILITY": "default"},
    "ATen avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "MKL compatible": {"MKL_CBWR": "COMPATIBLE"},
    "2 threads": {"OMP_NUM_THREADS": "2", "NANTRAP_TEST_THREADS": "2"},
}
PATHS = ("systems/tests", "tests/guard", "tests/locate", "tests/causes")
BAD = ("failure", "error")


def outcomes(report: Path) -> dict[str, str]:
    """The result of every test, by its name. A test with a failure and an error at its end counts as failed."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        kind = next((kind for kind in (*BAD, "skipped") if kind in kinds), "passed")
        found[f"{case.get('classname')}::{case.get('name')}"] = kind
    return found


def run(setting: str, paths: Iterable[str], jobs: str, seed: int | None, report: Path) -> None:
    """The tests of `paths` under one setting, their outcomes written to `report`."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short", f"--junitxml={report}"]
    command += ["-n", jobs, "--dist", "loadfile", *paths]
    if seed is not None:
        command += ["--random-order-bucket=global", f"--random-order-seed={seed}"]
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **SETTINGS[setting]}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=_LONGEST)
    if done.returncode not in (0, 1):
        print(done.stdout[-2000:] + done.stderr[-2000:], file=sys.stderr)


def changed(everywhere: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The tests with more than one outcome; a test that one setting did not run is one of them."""
    tests = {test for found in everywhere.values() for test in found}
    return sorted(test for test in tests if len({found.get(test) for found in everywhere.values()}) > 1)


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 if under every setting all tests pass or are skipped, with the same outcome everywhere; 1 if not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("paths", nargs="*", default=PATHS, help="what to run (default: %(default)s)")
    parser.add_argument("--setting", action="append", choices=list(SETTINGS), help="only this one; may be repeated")
    parser.add_argument("--jobs", default="2", help="processes of pytest (default: 2)")
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="random order; the n-th setting has seed SEED + n")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="keep outcomes here, compare with those in it")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = options.results or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        reports = {name: folder / f"{name}.xml" for name in SETTINGS}
        for number, name in enumerate(SETTINGS):
            if options.setting and name not in options.setting:
                continue
            seed = None if options.shuffle is None else options.shuffle + number
            reports[name].unlink(missing_ok=True)
            began = time.perf_counter()
            run(name, options.paths, options.jobs, seed, reports[name])
            order = "" if seed is None else f", random order {seed}"
            print(f"{name}: {time.perf_counter() - began:.0f} s{order}", flush=True)
            if not reports[name].exists():
                print(f"{name}: pytest ended without a report", file=sys.stderr)
                return 1
        everywhere = {name: outcomes(report) for name, report in reports.items() if report.exists()}
    return tell(everywhere)


def tell(everywhere: Mapping[str, Mapping[str, str]]) -> int:
    """Print each setting's figures and every test that failed or changed its outcome. 1 if there is any, else 0."""
    for name, found in everywhere.items():
        counts = {kind: list(found.values()).count(kind) for kind in ("passed", "skipped", *BAD)}
        print(f"{name}: " + ", ".join(f"{count:,} {kind}" for kind, count in counts.items()))
        for test in sorted(test for test, outcome in found.items() if outcome in BAD):
            print(f"  {test}")
    different = changed(everywhere)
    tests = {test for found in everywhere.values() for test in found}
    print(f"{len(tests):,} tests, {len(everywhere)} settings, {len(different)} with more than one outcome")
    for test in different:
        print(f"  {test}: " + ", ".join(f"{name} {found.get(test, 'not run')}" for name, found in everywhere.items()))
    failed = any(outcome in BAD for found in everywhere.values() for outcome in found.values())
    return 1 if failed or different else 0


if __name__ == "__main__":
    raise SystemExit(main())
