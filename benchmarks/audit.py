"""How fast is `nantrap audit`, and how much memory does it take?

Writes a checkpoint of model and Adam state (`--gb`, default 2) into a temporary folder, reads it several ways, each in
a process of its own, and deletes it. The rival is the line everybody writes: `torch.load`, then `isnan` over the model,
a third of the data. `read` is the bandwidth of plain reads with as many threads as the audit has workers.

On a machine that others use too, wall time says how busy they were. CPU time (of all threads) says what the work
costs; the ways run in turns, and medians are shown, and the least wall time, which comes nearest to an idle machine.

    python benchmarks/audit.py --gb 2
"""

from __future__ import annotations

import argparse
import gc
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


def load_and_isnan(path: str) -> None:
    import torch

    checkpoint = torch.load(path)
    assert not any(torch.isnan(p).any() for p in checkpoint["model"].values())


def audit_with_crc(path: str) -> None:
    from nantrap.checkpoints.audit import audit

    assert audit(path).healthy


def audit_fast(path: str) -> None:
    from nantrap.checkpoints.audit import audit

    assert audit(path, verify=False).healthy


RIVAL = "torch.load + isnan(model)"

WAYS: dict[str, Callable[[str], None]] = {
    "read": plain_read,
    RIVAL: load_and_isnan,
    "nantrap audit": audit_with_crc,
    "nantrap audit --fast": audit_fast,
}


def measure_here(way: str, path: str, *, cold: bool) -> None:
    """Run once, in this process, and print wall seconds, CPU seconds and the peak of the resident memory in bytes."""
    import torch

    import nantrap.checkpoints  # noqa: F401 - imports are not what is measured, torch's neither

    if way.startswith("nantrap"):
        torch.set_num_threads(1)  # as the command does
    gc.collect()  # nor what imports left behind, which would take a tenth of a second somewhere on the way
    if cold:
        forget(path)
    begin, cpu_begin = time.perf_counter(), time.process_time()
    WAYS[way](path)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu_begin
    # Not ru_maxrss: a child inherits the peak of the process that forked it.
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(seconds, cpu, int(peak.split()[1]) * 1024)


class Result(NamedTuple):
    """Median and least wall seconds, median CPU seconds, greatest peak of the resident memory."""

    wall: float
    least: float
    cpu: float
    peak: float


def measure(path: Path, *, cold: bool, repeat: int) -> dict[str, Result]:
    """Each way in fresh processes, in turns, so that noise falls on all alike."""
    runs: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
    for _ in range(repeat):
        for way, results in runs.items():
            command = [sys.executable, __file__, "--way", way, "--path", str(path)] + (["--cold"] if cold else [])
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            results.append(tuple(map(float, output)))
    return {way: _result(results) for way, results in runs.items()}


def _result(results: list[tuple[float, ...]]) -> Result:
    walls, cpus, peaks = zip(*results, strict=True)
    return Result(statistics.median(walls), min(walls), statistics.median(cpus), max(peaks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=2.0, help="size of the checkpoint")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--dir", help="where to write it; needs the space")
    parser.add_argument("--warm", action="store_true", help="only with the file in the page cache")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    parser.add_argument("--cold", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        measure_here(arguments.way, arguments.path, cold=arguments.cold)
        return
    import torch

    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        path = Path(folder) / "step_100.pt"
        size = write_checkpoint(path, arguments.gb)
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        print(
            f"{size / 1e9:.2f} GB, {os.cpu_count()} cores, torch {torch.__version__}, {platform.machine()}, load {load}"
        )
        print("| | wall s | least | CPU s | peak RSS MB | faster than the rival: wall, least, CPU | of read: same |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for cold in (False,) if arguments.warm else (False, True):
            results = measure(path, cold=cold, repeat=arguments.repeat)
            rival, read = results[RIVAL], results["read"]
            for way, result in results.items():
                faster = ", ".join(f"{a / b:.1f} ×" for a, b in zip(rival[:3], result[:3], strict=True))
                share = ", ".join(f"{a / b:.0%}" for a, b in zip(read[:3], result[:3], strict=True))
                times = f"{result.wall:.2f} | {result.least:.2f} | {result.cpu:.2f}"
                name = f"{way}, {'cold' if cold else 'warm'}"
                print(f"| {name} | {times} | {result.peak / 1e6:,.0f} | {faster} | {share} |", flush=True)


if __name__ == "__main__":
    main()
