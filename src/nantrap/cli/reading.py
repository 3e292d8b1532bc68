"""Opening runs and logs for a command, with a progress bar on a terminal when they are large."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nantrap.incident.wording import counted, escaped, visible
from nantrap.problems import Severity
from nantrap.problems.progress import ProgressBar
from nantrap.problems.terminal import Printer, marked
from nantrap.record import Run, open_run

if TYPE_CHECKING:
    from nantrap.health import HealthVerdict

SEVERITIES: Final[dict[str, Severity]] = {
    "healthy": "ok", "doubtful": "warning", "sick": "error", "unknown": "unjudged",
}  # fmt: skip
"""How each verdict on a run is shown."""
_LARGE = 50 << 20
_SHOWN_RUNS = 40


def open_runs(paths: Sequence[str], *, columns: Collection[str] | None = None) -> list[Run]:
    """Open runs or logs, in order."""
    total = sum(_size(Path(path)) for path in paths)
    if total < _LARGE:
        return [open_run(path, columns=columns) for path in paths]
    with ProgressBar(sys.stderr, after=0.0) as bar:
        bar.add_total(total)
        return [open_run(path, columns=columns, on_read=bar.add_bytes) for path in paths]


def runs_below(path: str) -> list[Path]:
    """The runs in a folder that is no run itself, the newest first; empty for everything else."""
    from nantrap.report.serving.index import places_under

    folder = Path(path)
    if not folder.is_dir() or any(folder.glob("journal-r*.jsonl")):
        return []
    found = [place.path for place in places_under(folder) if not place.foreign and place.path != folder]
    return sorted(found, key=_written, reverse=True)


def list_runs(path: str, command: str, *, as_json: bool = False) -> int:
    """Print the runs of a folder with their health, for a command that takes one run; 2, since nothing was done."""
    verdicts = judged(runs_below(path))
    show_verdicts(verdicts, as_json=as_json)
    held = counted(len(verdicts), "run")
    example = f"nantrap {command} {escaped(str(verdicts[0][0]))}"
    Printer(sys.stderr).line(f"{escaped(path)} holds {held}; give one: {example}")
    return 2


def judged(runs: Sequence[Path]) -> list[tuple[Path, HealthVerdict]]:
    """The verdict on each run."""
    from nantrap import health

    return [(path, health.judge(run, now=time.time())) for path in runs for run in open_runs([str(path)])]


def show_verdicts(verdicts: Sequence[tuple[Path, HealthVerdict]], *, as_json: bool) -> None:
    """Print a line for each run: its health, its last step and its path; or the verdicts as one JSON document."""
    if as_json:
        document = {"schema": "nantrap.check-all/1", "runs": [verdict.to_dict() for _, verdict in verdicts]}
        print(json.dumps(document, allow_nan=False))
        return
    printer = Printer(sys.stdout)
    for path, verdict in verdicts[:_SHOWN_RUNS]:
        word = marked(SEVERITIES[verdict.word], f"{verdict.word:<9}")
        step = f"step {verdict.last_step:>9,}" if verdict.last_step >= 0 else " " * 14
        printer.line("  ", word, f" {step}  {visible(verdict.state):<12} {escaped(str(path))}")
    if len(verdicts) > _SHOWN_RUNS:
        printer.line(f"  and {len(verdicts) - _SHOWN_RUNS:,} older runs")


def _written(run: Path) -> float:
    return max((file.stat().st_mtime for file in run.glob("journal-r*.jsonl")), default=0.0)


def _size(path: Path) -> int:
    try:
        files = [path] if path.is_file() else list(path.glob("journal-r*.jsonl"))
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0  # reported when it is opened
