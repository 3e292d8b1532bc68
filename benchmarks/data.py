"""How fast is `nantrap data`, and how much memory does it take?

Writes a float32 array (`--gb`, rows of 1,000 values) as .npy into a temporary folder, reads it several ways, each in a
separate process, and deletes it. Compared with a plain read of all bytes with as many threads, and with the line that
most people writes, `np.isnan(np.load(path, mmap_mode="r")).any()`, which looks for NaN only. `nantrap` finds NaN, Inf,
outliers, constant samples and copies in the same pass. `--cold` takes the file out of the page cache before each read.
`--format csv` or `jsonl` writes a table of ten numbers and a label, or records with token ids; there the rivals are the
plain read, and Python's `csv` or `json` with `math.isnan` on each value, on one core.

On a machine that others use too, wall time says how busy they were: the ways run in turns, and the median and the
least wall time are shown, and the CPU time of all threads (of this process: Ray's workers are others).

    python benchmarks/data.py --gb 0.6
    python benchmarks/data.py --gb 4 --cold --ray
    python benchmarks/data.py --gb 0.6 --format csv
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

_WAYS = {
    "plain read": (
        "import os\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "descriptor, size, part = os.open(path, os.O_RDONLY), os.path.getsize(path), 32 << 20\n"
        "def read(start):\n"
        "    buffer, end = bytearray(4 << 20), min(size, start + part)\n"
        "    while start < end:\n"
        "        start += os.preadv(descriptor, [buffer], start)\n"
        "with ThreadPoolExecutor(os.cpu_count()) as pool: list(pool.map(read, range(0, size, part)))\n"
    ),
    "numpy isnan": "import numpy as np\nnp.isnan(np.load(path, mmap_mode='r')).any()\n",
    "csv and isnan": (
        "import csv, math\n"
        "with open(path, newline='') as file:\n"
        "    rows = csv.reader(file); next(rows)\n"
        "    any(math.isnan(float(cell)) for row in rows for cell in row)\n"
    ),
    "json and isnan": (
        "import json, math\n"
        "with open(path) as file:\n"
        "    any(math.isnan(value) for line in file for value in json.loads(line)['x'])\n"
    ),
    "nantrap data": "from nantrap.doctor.data import check_data\ncheck_data(path)\n",
    "nantrap data, Ray": (
        "import ray\n"
        "ray.init(num_cpus=os.cpu_count(), include_dashboard=False, logging_level='ERROR', log_to_driver=False)\n"
        "from nantrap.doctor.data import check_data\n"
        "from nantrap.engines import engine_named\n"
        "begin = time.perf_counter()  # an existing cluster is used, so its start is not counted\n"
        "check_data(path, engine=engine_named('ray'))\n"
    ),
}
_FRAME = """
import os, sys, time
path = sys.argv[1]
import numpy, {imports}  # the start of a program is not what is compared
begin, work = time.perf_counter(), time.process_time()
{body}
seconds, work = time.perf_counter() - begin, time.process_time() - work
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print("RESULT", seconds, work, peak / 1024)
"""


def write_array(path: Path, gigabytes: float) -> None:
    """Normal values in rows of 1,000; one NaN near the end."""
    rows = int(gigabytes * 1e9 / 4000)
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, 1000))
    rng = np.random.default_rng(0)
    for start in range(0, rows, 10_000):
        stop = min(rows, start + 10_000)
        array[start:stop] = rng.standard_normal((stop - start, 1000), dtype=np.float32)
    array[rows - 7, 3] = np.nan
    array.flush()


def write_table(path: Path, gigabytes: float) -> None:
    """Ten normal values and a label per row; one empty cell near the end."""
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        file.write(",".join([*(f"x{number}" for number in range(10)), "label"]) + "\n")
        while file.tell() < gigabytes * 1e9:
            values, labels = rng.normal(size=(20_000, 10)), rng.integers(0, 10, 20_000)
            np.savetxt(file, np.column_stack([values, labels]), fmt=["%.6g"] * 10 + ["%d"], delimiter=",")
        file.write("1,2,,4,5,6,7,8,9,10,3\n")


def write_records(path: Path, gigabytes: float) -> None:
    """64 token ids and ten values per line."""
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        while file.tell() < gigabytes * 1e9:
            ids, values = rng.integers(0, 30_000, (2000, 64)).tolist(), rng.normal(size=(2000, 10)).round(4).tolist()
            file.writelines(json.dumps({"input_ids": i, "x": v}) + "\n" for i, v in zip(ids, values, strict=True))


_WRITERS = {"npy": write_array, "csv": write_table, "jsonl": write_records}
_RIVALS = {"npy": "numpy isnan", "csv": "csv and isnan", "jsonl": "json and isnan"}


def forget(path: Path) -> None:
    """Take the file out of the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def measure(way: str, path: Path) -> tuple[float, float, float]:
    """Seconds, seconds of CPU and megabytes of one way, in a separate process."""
    imports = "nantrap.doctor.data.check" if "nantrap" in way else "os"
    done = subprocess.run(
        [sys.executable, "-c", _FRAME.format(body=_WAYS[way], imports=imports), str(path)],
        capture_output=True, text=True, timeout=900, check=True,
    )  # fmt: skip
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    _, seconds, work, megabytes = line.split()
    return float(seconds), float(work), float(megabytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=0.6)
    parser.add_argument("--format", choices=list(_WRITERS), default="npy")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="read from disk, not from the page cache")
    parser.add_argument("--ray", action="store_true", help="measure a local Ray cluster, too")
    arguments = parser.parse_args()
    ways = ["plain read", _RIVALS[arguments.format], "nantrap data"] + (["nantrap data, Ray"] if arguments.ray else [])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"data.{arguments.format}")
        _WRITERS[arguments.format](path, arguments.gb)
        found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
        for _ in range(arguments.rounds):
            for way in ways:
                if arguments.cold:
                    forget(path)
                found[way].append(measure(way, path))
        size = path.stat().st_size
    source = "disk" if arguments.cold else "page cache"
    print(f"{size / 1e9:.2f} GB from the {source}, {os.cpu_count()} cores, {platform.machine()}")
    print(f"{'':20} {'median s':>9} {'least s':>9} {'CPU s':>7} {'GB/s':>6} {'MB':>8}")
    for way, results in found.items():
        seconds, work = [result[0] for result in results], min(result[1] for result in results)
        best, memory = min(seconds), max(result[2] for result in results)
        print(
            f"{way:20} {statistics.median(seconds):9.3f} {best:9.3f} {work:7.2f} {size / best / 1e9:6.1f} {memory:8.0f}"
        )


if __name__ == "__main__":
    main()
