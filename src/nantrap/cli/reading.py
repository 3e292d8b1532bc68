"""Opening runs and logs for a command, with a progress bar on a terminal when they are large."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from nantrap.problems.progress import ProgressBar
from nantrap.record import Run, open_run

_LARGE = 50 << 20


def open_runs(paths: Sequence[str], *, columns: Collection[str] | None = None) -> list[Run]:
    """Open runs or logs, in order."""
    total = sum(_size(Path(path)) for path in paths)
    if total < _LARGE:
        return [open_run(path, columns=columns) for path in paths]
    with ProgressBar(sys.stderr, after=0.0) as bar:
        bar.add_total(total)
        return [open_run(path, columns=columns, on_read=bar.add_bytes) for path in paths]


def _size(path: Path) -> int:
    try:
        files = [path] if path.is_file() else list(path.glob("journal-r*.jsonl"))
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0  # reported when it is opened
