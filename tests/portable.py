"""The tests under settings that imitate other CPUs: `make test-portable`, or `python tests/portable.py PATHS...`.

oneDNN, ATen and MKL choose their kernels by what the CPU offers, and another kernel rounds differently. Environment
variables make them choose as on an older CPU. No test may change its outcome between any two settings.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

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
PATHS = ("tests/systems", "tests/guard", "tests/locate", "tests/causes")


def outcomes(report: Path) -> dict[str, str]:
    """The result of every test, by its name."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        found[f"{case.get('classname')}::{case.get('name')}"] = kinds.pop() if kinds else "passed"
    return found


def main() -> int:
    """Run the tests once for every setting. Exit code 0 if all pass everywhere, 1 if not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("paths", nargs="*", default=PATHS, help="what to run (default: %(default)s)")
    parser.add_argument("--setting", action="append", choices=list(SETTINGS), help="only this one; may be repeated")
    parser.add_argument("--jobs", default="2", help="processes of pytest (default: 2)")
    options = parser.parse_args()
    everywhere: dict[str, dict[str, str]] = {}
    for name in options.setting or SETTINGS:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.xml")
            command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=line", f"--junitxml={report}"]
            command += ["-n", options.jobs, "--dist", "loadfile", *options.paths]
            environment = {"OMP_NUM_THREADS": "1", **os.environ, **SETTINGS[name]}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            everywhere[name] = outcomes(report) if report.exists() else {"pytest": "error"}
        bad = sorted(test for test, outcome in everywhere[name].items() if outcome in ("failure", "error"))
        seconds = time.perf_counter() - began
        print(
            f"{name}: {len(everywhere[name]) - len(bad)} passed or skipped, {len(bad)} failed, {seconds:.0f} s",
            flush=True,
        )
        for test in bad:
            print(f"  {test}", flush=True)
        if done.returncode not in (0, 1):
            print(done.stdout[-2000:] + done.stderr[-2000:], file=sys.stderr)
    tests = {test for found in everywhere.values() for test in found}
    changed = [t for t in sorted(tests) if len({found.get(t) for found in everywhere.values()}) > 1]
    print(f"{len(tests)} tests, {len(everywhere)} settings, {len(changed)} with more than one outcome")
    return 0 if all(o not in ("failure", "error") for found in everywhere.values() for o in found.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
