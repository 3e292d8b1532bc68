"""What the list shows of a run or a log, and what its state is judged by: from the end of its file alone."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from nantrap.errors import NantrapError
from nantrap.incident import BY_SLUG
from nantrap.incident.wording import visible
from nantrap.report.journals import ending, finite_or_none, incident_folders
from nantrap.report.serving.foreign import ForeignLog
from nantrap.report.serving.state import RECENT, Recent, State, state_of
from nantrap.report.surroundings import read_json

_SPARK = 60
_TAIL_BYTES = 96 * 1024


@dataclass(frozen=True, slots=True)
class Summary:
    """One run as the list shows it. `ident` is all that an address holds of it."""

    ident: str
    name: str
    path: Path
    state: State
    step: int
    total: int | None
    loss: float
    spark: tuple[float, ...]
    recent: int
    recent_applied: int
    grad_norm: float
    lr: float
    scale: float | None
    incident: str
    incident_step: int | None
    modified: float
    ranks: tuple[int, ...]
    milliseconds: float
    kind: str = "run"
    """`run`, or the kind of a log that nantrap did not write."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, for the script of the page."""
        return {
            "id": self.ident, "name": self.name, "state": self.state.word, "tone": self.state.tone,
            "sign": self.state.sign, "reason": self.state.reason, "step": self.step, "total": self.total,
            "loss": finite_or_none(self.loss), "applied": self.recent_applied, "recent": self.recent,
            "modified": self.modified, "spark": [finite_or_none(v) for v in self.spark],
            "grad_norm": finite_or_none(self.grad_norm), "lr": finite_or_none(self.lr), "scale": self.scale,
            "incident": self.incident, "code": BY_SLUG[self.incident].code if self.incident in BY_SLUG else "",
            "incident_step": self.incident_step, "kind": self.kind,
        }  # fmt: skip


def summarised(
    ident: str, folder: Path, journals: list[Path], root: Path, modified: float, best: float | None
) -> tuple[Summary, Recent, int | None]:
    """What the list shows of a run, what its state is judged by, and its process where that is known."""
    end = ending(journals[0], most_bytes=_TAIL_BYTES)
    rows = end.rows
    info = read_json(folder / "run.json")
    losses = [row.numbers.get("loss", math.nan) for row in rows]
    recent = rows[-RECENT:]
    usual = median([row.milliseconds for row in recent]) if recent else 0.0
    last = rows[-1] if rows else None
    incident = next((row for row in reversed(rows) if row.incident or row.action in ("skip", "rollback", "stop")), None)
    total = info.get("total_steps")
    judged = Recent(
        losses=[row.numbers.get("loss", math.nan) for row in recent],
        actions=[row.action for row in recent],
        milliseconds=usual,
        steps=last.step + 1 if last else 0,
        total=total if isinstance(total, int) else None,
        incidents=len(incident_folders(folder)),
        since_incident=last.step - incident.step if last and incident else None,
        ended=end.over is not None,
        error=visible(str(end.over.get("error", ""))) if end.over is not None else "",
        best=best,
    )
    numbers: Mapping[str, float] = last.numbers if last else {}
    summary = Summary(
        ident=ident,
        name=_name(folder, root),
        path=folder,
        state=state_of(judged),
        step=last.step if last else 0,
        total=total if isinstance(total, int) else None,
        loss=numbers.get("loss", math.nan),
        spark=tuple(_thinned(losses[-600:])),
        recent=len(rows),
        recent_applied=sum(1 for row in rows if row.action == "apply"),
        grad_norm=numbers.get("grad_norm", math.nan),
        lr=numbers.get("lr", math.nan),
        scale=numbers.get("scale"),
        incident=str(incident.incident.get("cause") or incident.action) if incident else "",
        incident_step=incident.step if incident else None,
        modified=modified,
        ranks=tuple(range(len(journals))),
        milliseconds=usual,
    )
    return summary, judged, _process(info)


def summarised_log(ident: str, path: Path, root: Path, modified: float) -> tuple[Summary, Recent, None] | None:
    """The same of a log that nantrap did not write; `None` for a file that is no log of a training run."""
    try:
        log = ForeignLog(path, last_bytes=_TAIL_BYTES)
    except (NantrapError, OSError):
        return None
    if not log.is_training:
        return None
    rows = [row for row in log.rows(most=600) if "loss" in row.numbers]
    losses = [row.numbers["loss"] for row in rows]
    last = rows[-1] if rows else None
    numbers: Mapping[str, float] = last.numbers if last else {}
    judged = Recent(
        losses=losses[-RECENT:],
        actions=["apply"] * len(losses[-RECENT:]),
        milliseconds=1000 * log.seconds_between_lines,
        steps=last.step if last else 0,
        total=log.total,
        ended=log.done,
        best=log.best,
        foreign=True,
    )
    summary = Summary(
        ident=ident,
        name=_name(path, root),
        path=path,
        state=state_of(judged),
        step=last.step if last else 0,
        total=log.total,
        loss=numbers.get("loss", math.nan),
        spark=tuple(_thinned(losses)),
        recent=len(rows),
        recent_applied=len(rows),
        grad_norm=numbers.get("grad_norm", math.nan),
        lr=numbers.get("lr", math.nan),
        scale=numbers.get("scale"),
        incident="",
        incident_step=None,
        modified=modified,
        ranks=(0,),
        milliseconds=judged.milliseconds,
        kind=log.kind,
    )
    return summary, judged, None


def _name(path: Path, root: Path) -> str:
    relative = path.relative_to(root).as_posix()
    return path.name if relative == "." else relative


def _thinned(values: list[float]) -> list[float]:
    """At most 60 values for a spark; a group with a NaN in it is NaN, so that no gap is hidden."""
    if len(values) <= _SPARK:
        return values
    groups = [values[len(values) * i // _SPARK : len(values) * (i + 1) // _SPARK] for i in range(_SPARK)]
    return [math.nan if any(not math.isfinite(v) for v in group) else max(group) for group in groups]


def _process(info: Mapping[str, Any]) -> int | None:
    """The process of the last start of a run."""
    starts = [info, *(entry for entry in info.get("resumed", ()) if isinstance(entry, dict))]
    pid = starts[-1].get("pid")
    return pid if isinstance(pid, int) and not isinstance(pid, bool) and pid > 0 else None


def is_alive(pid: int | None) -> bool | None:
    """Whether a process is running. For a run on another machine this is not known."""
    if pid is None or os.name != "posix":
        return None
    try:
        os.kill(pid, 0)  # signal 0 asks and does nothing
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
