"""How long a report of a million steps takes, and the first page of a journal of a gigabyte.

    python benchmarks/pages.py [--steps 1000000] [--gb 1] [--runs 2000] [--json]

The journal is made on the spot; one step of a thousand is skipped and has an incident. `report` is the whole command
`nantrap report`, from its start to the written file. `serve` is the time from a request to the whole answer, for a
server that has just started and has no cache; its largest memory is measured after both pages were answered. A plain
read of the same file is the control. `many` is the list over a folder of runs of 500 steps: the first answer, and the
time until every run is in it, while the server also gathers their curves.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

SKIPPED = (
    '{"step":%d,"loss":"nan","grad_norm":"nan","lr":[0.001],"action":"skip","by":"guard","ms":412.016,"incident":'
    '{"phase":"forward","module":"blocks.3.attention","op":"aten._softmax","cause":"softmax_fully_masked_row"}}\n'
)
EVERY = 1_000
LINE = '{"step":%d,"loss":%.16g,"grad_norm":%.16g,"lr":[0.001],"action":"apply","by":"guard","ms":108.698}\n'


def write_journal(folder: Path, *, steps: int | None = None, size: float | None = None) -> Path:
    """A journal of a number of steps, or of a number of bytes."""
    folder.mkdir(parents=True)
    path, rng, step, written = folder / "journal-r0.jsonl", random.Random(0), 0, 0
    (folder / "run.json").write_text('{"schema": "nantrap.run/1"}')
    with path.open("w") as file:
        while (steps is not None and step < steps) or (size is not None and written < size):
            number = min(10_000, steps or 10_000)
            lines = [LINE % (step + i, 2 + rng.random(), 1 + rng.random()) for i in range(number)]
            lines[EVERY - 1 :: EVERY] = [SKIPPED % (step + i) for i in range(EVERY - 1, number, EVERY)]
            step += len(lines)
            written += file.write("".join(lines))
    return path


def read_plainly(path: Path) -> float:
    """Seconds of reading the file, all of it."""
    began = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 22):
            pass
    return time.perf_counter() - began


def report(folder: Path) -> float:
    """Seconds of the whole command, the better of two."""
    command = [sys.executable, "-m", "nantrap", "report", str(folder), "-o", str(folder / "page.html"), "--force"]
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, timeout=600)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def serve(root: Path) -> dict[str, float]:
    """Seconds of the list and of the run's page from a server that has just started, and its largest memory in MB."""
    command = [sys.executable, "-m", "nantrap", "serve", str(root), "--port", "0", "--no-cache"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            address = next(line.strip() for line in server.stdout if line.startswith("http://"))
            run = json.loads(fetched(address + "api/runs")[1])["runs"][0]["id"]
            found = {"list": fetched(address)[0], "run": fetched(f"{address}run/{run}")[0]}
            status = Path(f"/proc/{server.pid}/status").read_text()
            found["memory_mb"] = int(status.split("VmHWM:")[1].split()[0]) / 1024
            return found
        finally:
            server.terminate()


def serve_many(root: Path) -> dict[str, float]:
    """Seconds of the first list, until every run is listed, of processor time by then, and the largest memory in MB."""
    command = [sys.executable, "-m", "nantrap", "serve", str(root), "--port", "0", "--no-cache"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            address = next(line.strip() for line in server.stdout if line.startswith("http://"))
            began = time.perf_counter()
            found = {"list": fetched(address)[0]}
            while "being read" in json.loads(fetched(address + "api/runs")[1])["heading"]:
                pass
            found["all"] = time.perf_counter() - began
            found["again"] = fetched(address)[0]
            used = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
            found["processor"] = (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK")
            status = Path(f"/proc/{server.pid}/status").read_text()
            found["memory_mb"] = int(status.split("VmHWM:")[1].split()[0]) / 1024
            return found
        finally:
            server.terminate()


def fetched(address: str) -> tuple[float, bytes]:
    """Seconds and content of one request."""
    began = time.perf_counter()
    with urllib.request.urlopen(address, timeout=60) as answer:
        content = answer.read()
    return time.perf_counter() - began, content


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=1_000_000, help="steps of the reported run (default: %(default)s)")
    parser.add_argument("--gb", type=float, default=1.0, help="size of the served journal (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=2000, help="runs of the long list (default: %(default)s)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        journal = write_journal(Path(folder, "million"), steps=options.steps)
        found["report"] = {"steps": options.steps, "read": read_plainly(journal), "seconds": report(journal.parent)}
        journal = write_journal(Path(folder, "runs", "large"), size=options.gb * 1e9)
        found["serve"] = {"gb": options.gb, "read": read_plainly(journal), **serve(journal.parent.parent)}
        for number in range(options.runs):
            write_journal(Path(folder, "many", f"group{number % 20}", f"exp{number}"), steps=500)
        found["many"] = {"runs": options.runs, **serve_many(Path(folder, "many"))}
    if options.json:
        print(json.dumps(found, indent=2))
        return
    made, shown, many = found["report"], found["serve"], found["many"]
    print(f"report of {made['steps']:,} steps: {made['seconds']:.2f} s (plain read {made['read']:.2f} s)")
    print(
        f"serve of {shown['gb']:g} GB: list {shown['list']:.2f} s, run {shown['run']:.2f} s, "
        f"{shown['memory_mb']:.0f} MB (plain read {shown['read']:.2f} s)"
    )
    print(
        f"list of {many['runs']:,} runs: first {many['list']:.2f} s, all of them after {many['all']:.1f} s "
        f"({many['processor']:.1f} s of processor), then {many['again']:.2f} s, {many['memory_mb']:.0f} MB"
    )


if __name__ == "__main__":
    main()
