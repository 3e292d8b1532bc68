"""Opening runs and logs for a command, with a progress bar on a terminal when they are large."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from nantrap.record import Run, open_run

_LARGE = 50 << 20


def open_runs(paths: Sequence[str], *, columns: Collection[str] | None = None) -> list[Run]:
    """Open runs or logs, in order."""
    total = sum(_size(Path(path)) for path in paths)
    if total < _LARGE or not sys.stderr.isatty():
        return [open_run(path, columns=columns) for path in paths]
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    bar = Progress(BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    with bar:
        task = bar.add_task("reading", total=total)
        return [open_run(path, columns=columns, on_read=lambda count: bar.advance(task, count)) for path in paths]


def _size(path: Path) -> int:
    try:
        files = [path] if path.is_file() else list(path.glob("journal-r*.jsonl"))
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0  # reported when it is opened
