"""What the list shows of a run or a log: from the end of its file alone, so that a page can show thousands of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nantrap.errors import NantrapError
from nantrap.health import judge
from nantrap.incident import BY_SLUG
from nantrap.record import open_run
from nantrap.report.charts import spark_paths
from nantrap.report.journals import JournalRow, finite_or_none, incident_folders, steps_as_rows
from nantrap.report.serving.foreign import ForeignLog
from nantrap.report.states import (
    RecentSteps,
    RunState,
    is_alive,
    process_of,
    recent_steps,
    state_of,
    verdict_of,
)
from nantrap.report.surroundings import read_json

_TAIL_BYTES = 96 * 1024
_JUDGED_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Summary:
    """One run or log as the list shows it.

    Attributes:
        ident: all that an address holds of it.
        name: its path under the folder that is served.
        path: its folder, or the log.
        modified: when its file was last written, in seconds since the epoch.
        judged: what its state is judged by.
        state: how it was doing then.
        last: its last step.
        spark: the recent losses.
        recent: how many recent steps were read.
        recent_applied: how many of them were applied.
        event: the last step that was not applied or had an incident.
        process: the process of its last start, where known.
        kind: `run`, or the kind of a log that nantrap did not write.
    """

    ident: str
    name: str
    path: Path
    modified: float
    judged: RecentSteps
    state: RunState
    last: JournalRow
    spark: tuple[float, ...]
    recent: int
    recent_applied: int
    event: JournalRow | None = None
    process: int | None = None
    kind: str = "run"

    def at(self, now: float) -> Summary:
        """The run with its state at a time: it depends on the age of the last line and on the process."""
        judged = replace(self.judged, age=max(0.0, now - self.modified), alive=is_alive(self.process))
        return replace(self, judged=judged, state=state_of(judged))

    @property
    def step(self) -> int:
        """The last step that was attempted."""
        return self.last.step

    @property
    def loss(self) -> float:
        """The loss of the last step; NaN if it has none."""
        return self.last.numbers.get("loss", math.nan)

    @property
    def grad_norm(self) -> float:
        """The gradient norm of the last step; NaN if it has none."""
        return self.last.numbers.get("grad_norm", math.nan)

    @property
    def lr(self) -> float:
        """The learning rate of the last step; NaN if it has none."""
        return self.last.numbers.get("lr", math.nan)

    @property
    def scale(self) -> float | None:
        """The loss scale of the last step, where there is one."""
        return self.last.numbers.get("scale")

    @property
    def incident(self) -> str:
        """The cause of the last event, or what was done; empty without one."""
        return "" if self.event is None else self.event.cause or self.event.action

    @property
    def incident_step(self) -> int | None:
        """The step of the last event."""
        return None if self.event is None else self.event.step

    def to_dict(self) -> dict[str, Any]:
        """The run as JSON values, for the script of the page."""
        return {
            "id": self.ident, "name": self.name, "state": self.state.word, "tone": self.state.tone,
            "sign": self.state.sign, "reason": self.state.reason, "step": self.step, "total": self.judged.total,
            "loss": finite_or_none(self.loss), "applied": self.recent_applied, "recent": self.recent,
            "modified": self.modified, "spark": spark_paths(self.spark),
            "grad_norm": finite_or_none(self.grad_norm), "lr": finite_or_none(self.lr), "scale": self.scale,
            "incident": self.incident, "code": BY_SLUG[self.incident].code if self.incident in BY_SLUG else "",
            "incident_step": self.incident_step, "without_incident": self.judged.without_incident, "kind": self.kind,
        }  # fmt: skip


def summary_of_run(
    ident: str, folder: Path, journal: Path, root: Path, *, modified: float, best: float | None
) -> Summary:
    """The summary of a guarded run, from the end of the journal of its first rank."""
    run = open_run(journal, last_bytes=_TAIL_BYTES)
    rows, info = steps_as_rows(run.main), read_json(folder / "run.json")
    total = info.get("total_steps")
    judged = replace(
        recent_steps(run, run.main),
        total=total if isinstance(total, int) else None,
        incidents=len(incident_folders(folder)),
        best=best,
    )
    if run.end is not None and journal.stat().st_size <= _JUDGED_BYTES:
        judged = replace(judged, verdict=verdict_of(judge(open_run(folder))))
    event = next((row for row in reversed(rows) if row.is_event), None)
    return replace(_summary(ident, folder, root, rows, judged, modified), event=event, process=process_of(info))


def summary_of_log(ident: str, path: Path, root: Path, *, modified: float) -> Summary | None:
    """The summary of a log that nantrap did not write; `None` for a file that is no log of a training run."""
    try:
        log = ForeignLog(path, last_bytes=_TAIL_BYTES)
    except (NantrapError, OSError):
        return None
    if not log.is_training:
        return None
    judged = replace(recent_steps(log.run, log.run.main), verdict=log.verdict())
    return replace(_summary(ident, path, root, log.rows(most=600), judged, modified), kind=log.run.kind)


def _summary(
    ident: str, path: Path, root: Path, rows: Sequence[JournalRow], judged: RecentSteps, modified: float
) -> Summary:
    """What the summaries of runs and of logs have in common: all that the last steps say."""
    return Summary(
        ident=ident,
        name=_name(path, root),
        path=path,
        modified=modified,
        judged=judged,
        state=state_of(judged),
        last=rows[-1] if rows else JournalRow(0, "", {}),
        spark=tuple(row.numbers.get("loss", math.nan) for row in rows[-600:]),
        recent=len(rows),
        recent_applied=sum(1 for row in rows if row.action == "apply"),
    )


def _name(path: Path, root: Path) -> str:
    relative = path.relative_to(root).as_posix()
    return path.name if relative == "." else relative
