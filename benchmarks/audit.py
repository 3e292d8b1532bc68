"""How fast is `nantrap audit`, and how much memory does it take?

Writes a checkpoint of model and Adam state (`--gb`, default 1.6) into a temporary folder, reads it several ways, each
in a separate process, and deletes it. It measures whole commands, with the start of Python and imports, against the
usual line (`torch.load`, then `isnan` over the model, a third of the data). Then the scan alone, without imports, next
to `read`: the bandwidth of plain reads with as many threads as the audit has workers.

On a machine that others use too, wall time says how busy they were. CPU time (of all threads) says what the work
costs; the ways run in turns, and medians are shown, and the least wall time, which comes nearest to an idle machine.

    python benchmarks/audit.py --gb 1.6 --warm
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple


def write_checkpoint(path: Path, gigabytes: float) -> int:
    """Model and Adam moments of equal size, in tensors of 4096 × 1024."""
    import torch

    if gigabytes < 1e-3:
        torch.save({"model": {"weight": torch.randn(4, 4)}}, path)
        return path.stat().st_size
    layers = max(1, round(gigabytes * 1e9 / (3 * 4096 * 1024 * 4)))
    weights = {f"layers.{i}.weight": torch.randn(4096, 1024) for i in range(layers)}
    state = {
        i: {"step": torch.tensor(100.0), "exp_avg": torch.randn(4096, 1024), "exp_avg_sq": torch.rand(4096, 1024)}
        for i in range(layers)
    }
    groups = [{"lr": 1e-4, "betas": (0.9, 0.999), "params": list(range(layers))}]
    torch.save({"model": weights, "optimizer": {"state": state, "param_groups": groups}, "step": 100}, path)
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    return path.stat().st_size


def forget(path: str) -> None:
    """Take the file out of the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def plain_read(path: str) -> None:
    from nantrap.checkpoints.audit.scan import default_workers

    descriptor, size, workers = os.open(path, os.O_RDONLY), os.path.getsize(path), default_workers()
    part = 32 << 20

    def read(begin: int) -> None:
        buffer = memoryview(bytearray(1 << 20))  # the fastest of 128 KiB to 4 MiB
        for offset in range(begin, min(begin + part, size), len(buffer)):
            os.preadv(descriptor, [buffer], offset)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(read, range(0, size, part)))
    os.close(descriptor)


RIVAL = "torch.load + isnan, command"
ONE_LINER = (
    "import sys, torch; ckpt = torch.load(sys.argv[1]); "
    "sys.exit(any(torch.isnan(p).any() for p in ckpt['model'].values()))"
)
COMMANDS = {
    RIVAL: ["-c", ONE_LINER, "{path}"],
    "nantrap audit, command": ["-m", "nantrap", "audit", "{path}"],
    "nantrap audit --fast, command": ["-m", "nantrap", "audit", "--fast", "{path}"],
    "nantrap audit of 1 kB, command": ["-m", "nantrap", "audit", "{small}"],
}


def audit_with_crc(path: str) -> None:
    from nantrap.checkpoints.audit import audit

    assert audit(path).healthy


def audit_fast(path: str) -> None:
    from nantrap.checkpoints.audit import audit

    assert audit(path, verify=False).healthy


WAYS: dict[str, Callable[[str], None]] = {
    "read": plain_read,
    "scan with CRC-32": audit_with_crc,
    "scan": audit_fast,
}


def measure_here(way: str, path: str, small: str, *, cold: bool) -> None:
    """Run once, in this process, and print wall seconds, CPU seconds and the peak of the resident memory in bytes."""
    audit_with_crc(small)  # imports are not what is measured
    if cold:
        forget(path)
    begin, cpu_begin = time.perf_counter(), time.process_time()
    WAYS[way](path)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu_begin
    # Not ru_maxrss: a child inherits the peak of the process that forked it.
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(seconds, cpu, int(peak.split()[1]) * 1024)


def environment() -> dict[str, str]:
    """As after `pip install`: with compiled modules, whatever this process is configured to write."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def measure_command(arguments: list[str], *, path: Path, cold: bool) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds (user and system) and peak memory of a whole command."""
    if cold:
        forget(str(path))
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    assert status == 0, arguments
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


class Result(NamedTuple):
    """Median and least wall seconds, least CPU seconds, greatest peak of the resident memory."""

    wall: float
    least: float
    cpu: float
    peak: float


def measure(path: Path, small: Path, *, cold: bool, repeat: int) -> dict[str, Result]:
    """Each way in fresh processes, in turns, so that noise falls on all alike."""
    runs: dict[str, list[tuple[float, ...]]] = {way: [] for way in (*COMMANDS, *WAYS)}
    for _ in range(repeat):
        for way, arguments in COMMANDS.items():
            filled = [argument.format(path=path, small=small) for argument in arguments]
            runs[way].append(measure_command(filled, path=path, cold=cold))
        for way in WAYS:
            command = [sys.executable, __file__, "--way", way, "--path", str(path), "--small", str(small)]
            output = subprocess.run(
                command + ["--cold"] * cold, check=True, capture_output=True, text=True, env=environment()
            ).stdout
            runs[way].append(tuple(map(float, output.split())))
    return {way: _result(results) for way, results in runs.items()}


def _result(results: list[tuple[float, ...]]) -> Result:
    walls, cpus, peaks = zip(*results, strict=True)
    return Result(statistics.median(walls), min(walls), min(cpus), max(peaks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=1.6, help="size of the checkpoint")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--dir", help="where to write it; needs the space")
    parser.add_argument("--warm", action="store_true", help="only with the file in the page cache")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    parser.add_argument("--small", help=argparse.SUPPRESS)
    parser.add_argument("--write", help=argparse.SUPPRESS)
    parser.add_argument("--cold", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        measure_here(arguments.way, arguments.path, arguments.small, cold=arguments.cold)
        return
    if arguments.write:
        write_checkpoint(Path(arguments.write), arguments.gb)
        return
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        path, small = Path(folder) / "step_100.pt", Path(folder) / "small.pt"
        for target, size in ((path, arguments.gb), (small, 1e-6)):  # in a child: torch stays out of this process
            subprocess.run([sys.executable, __file__, "--write", str(target), "--gb", str(size)], check=True)
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        fast = "with" if importlib.util.find_spec("deflate") else "without"
        cores, machine = os.cpu_count(), platform.machine()
        print(f"{path.stat().st_size / 1e9:.2f} GB, {cores} cores, {machine}, load {load}, {fast} the package deflate")
        print("| | wall s | least wall s | CPU s (user + system) | GB/s of the least | peak RSS MB |")
        print("| --- | --- | --- | --- | --- | --- |")
        for cold in (False,) if arguments.warm else (False, True):
            plain_read(str(path))  # into the page cache; not into this process, whose peak its children inherit
            measure_command(["-m", "nantrap", "audit", str(small)], path=small, cold=False)  # compiles the modules
            for way, result in measure(path, small, cold=cold, repeat=arguments.repeat).items():
                speed = path.stat().st_size / 1e9 / result.least
                shown = f"{speed:.1f}" if "1 kB" not in way else ""
                times = f"{result.wall:.2f} | {result.least:.2f} | {result.cpu:.2f} | {shown}"
                print(f"| {way}, {'cold' if cold else 'warm'} | {times} | {result.peak / 1e6:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
