"""How long `nantrap doctor` takes on a repository of 1,000 Python files, on one core.

    python benchmarks/doctor.py [FOLDER] [--files 1000]

Without a folder, the files are those of torch (the first N by name that are no longer than 400 lines, which is 95 % of
what people write), copied nowhere: they are read where they are installed. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from nantrap.doctor.examine import examine

_LONGEST = 400


def python_files(folder: Path) -> Iterator[str]:
    """Files of ordinary length, in order."""
    for path in sorted(folder.rglob("*.py")):
        with path.open(encoding="utf-8", errors="replace") as stream:
            if sum(1 for _ in stream) <= _LONGEST:
                yield str(path)


def main() -> None:
    """Measure once; the time is the processor's, so that a busy machine does not count."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--files", type=int, default=1000)
    arguments = parser.parse_args()
    if arguments.folder:
        folder = Path(arguments.folder)
    else:
        spec = find_spec("torch")
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent
    paths = list(itertools.islice(python_files(folder), arguments.files))
    started, began = time.process_time(), time.perf_counter()
    report = examine(paths)
    seconds, wall = time.process_time() - started, time.perf_counter() - began
    lines = sum(Path(path).read_text(encoding="utf-8", errors="replace").count("\n") for path in paths)
    print(
        json.dumps(
            {
                "files": len(report.files_read),
                "lines": lines,
                "seconds": round(seconds, 2),
                "wall_seconds": round(wall, 2),
                "seconds_per_1000_files": round(seconds / len(paths) * 1000, 2),
                "findings": len(report.findings),
            }
        )
    )


if __name__ == "__main__":
    main()
