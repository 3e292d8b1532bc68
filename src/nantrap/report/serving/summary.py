"""What the list shows of a run or a log, and how it is doing, in one word.

Both come from the end of its file alone, so that a page can show thousands of runs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from nantrap.errors import NantrapError
from nantrap.incident import BY_SLUG
from nantrap.incident.wording import counted, duration, visible
from nantrap.record import open_run
from nantrap.report.charts import spark_paths
from nantrap.report.journals import JournalRow, ending, finite_or_none, incident_folders
from nantrap.report.serving.foreign import ForeignLog, verdict_of
from nantrap.report.surroundings import read_json

RECENT = 100
"""Steps that count as recent."""
_SKIPPING = 0.1
_STALLED_FACTOR = 20.0
_STALLED_LEAST_SECONDS = 60.0
_QUIET_SECONDS = 600.0
_FORGOTTEN_SECONDS = 86_400.0
_DIVERGING = 3.0
_TAIL_BYTES = 96 * 1024
_JUDGED_BYTES = 4 * 1024 * 1024

ORDER = (
    "stopped",
    "dead",
    "sick",
    "diverging",
    "stalled",
    "skipping",
    "recovering",
    "incidents",
    "doubtful",
    "unknown",
    "healthy",
    "finished",
)
"""The states, those that need attention first."""

_SIGNS = {
    "stopped": ("bad", "✖"), "dead": ("bad", "✖"), "sick": ("bad", "✖"), "diverging": ("bad", "✖"),
    "stalled": ("warn", "?"), "doubtful": ("warn", "▲"),
    "skipping": ("warn", "▲"), "recovering": ("warn", "↶"), "incidents": ("warn", "▲"), "unknown": ("muted", "?"),
    "healthy": ("ok", "✓"), "finished": ("muted", "■"),
}  # fmt: skip


# ---- how a run is doing


@dataclass(frozen=True, slots=True)
class RecentSteps:
    """The last steps of a run.

    Attributes:
        losses: of the last steps, oldest first, skipped ones included.
        actions: of the same steps.
        milliseconds: how long a step usually takes; 0 if it is not known.
        steps: attempted so far.
        total: steps of the whole run, where that is known.
        incidents: so far, as far as they have a folder.
        whole: whether these are all steps of the run, and not only its last ones.
        since_incident: steps since the last incident, `None` without one.
        age: seconds since the last line.
        alive: whether its process is running; `None` if that is not known.
        ended: whether the run recorded its end.
        error: the class of the exception that ended it; empty if none did.
        best: the smallest middle loss of an earlier stretch, where known.
        verdict: the verdict of `nantrap check` in a word and its first reason, of a log of another tool, which says
            nothing of its process, and of a run that has ended; else `None`.
    """

    losses: Sequence[float]
    actions: Sequence[str]
    milliseconds: float = 0.0
    steps: int = 0
    total: int | None = None
    incidents: int = 0
    whole: bool = True
    since_incident: int | None = None
    age: float = 0.0
    alive: bool | None = None
    ended: bool = False
    error: str = ""
    best: float | None = None
    verdict: tuple[str, str] | None = None

    @property
    def without_incident(self) -> str:
        """What is said where the last steps have no incident: older ones may have had one."""
        return "no incident" if self.whole and not self.incidents else "no recent incident"


@dataclass(frozen=True, slots=True)
class RunState:
    """A word for the state, a sentence that says why, and a sign and a colour: those of its health.

    `health` is the verdict on a run that has ended, if it is not too long to be judged for a list.
    """

    word: str
    reason: str
    health: str = ""

    @property
    def sign(self) -> str:
        """The sign next to the word."""
        return _SIGNS[self.health or self.word][1]

    @property
    def tone(self) -> str:
        """`bad`, `warn`, `ok` or `muted`."""
        return _SIGNS[self.health or self.word][0]

    @property
    def rank(self) -> int:
        """Small for what needs attention."""
        return ORDER.index(self.word)


def state_of(recent: RecentSteps) -> RunState:
    """The state of a run, the worst that is true of it."""
    if not recent.actions:
        return RunState("unknown", "no step yet")
    if recent.actions[-1] == "stop":
        return RunState("stopped", "the guard stopped the run")
    done = recent.total is not None and recent.steps >= recent.total
    usual = recent.milliseconds / 1000
    patience = max(_STALLED_LEAST_SECONDS, _STALLED_FACTOR * usual)
    if recent.error:
        return RunState("dead", f"ended by {recent.error}")
    if recent.verdict is not None and recent.verdict[0] == "sick":
        return RunState(*recent.verdict)
    if done or recent.ended:
        word, reason = recent.verdict or ("", "")
        over = "all steps are done" if done else "the run has ended"
        return RunState("finished", reason if word == "doubtful" else over, word)
    if recent.verdict is not None:
        return _foreign(recent, *recent.verdict)
    if recent.age > patience:
        if recent.alive is False:
            return RunState("dead", "its process is gone and it did not record its end")
        said = f"no step for {duration(recent.age)}" + (f", usually {_usual(usual)}" if usual else "")
        return RunState("stalled", said)
    return _running(recent)


def _foreign(recent: RecentSteps, word: str, reason: str) -> RunState:
    """A log says nothing when its run ends: after a day without a line, nothing is known."""
    usual = recent.milliseconds / 1000
    patience = max(_STALLED_LEAST_SECONDS, _STALLED_FACTOR * usual) if usual else _QUIET_SECONDS
    if recent.age <= patience:
        return RunState(word, reason)
    if recent.age < _FORGOTTEN_SECONDS:
        return RunState("stalled", f"no new line for {duration(recent.age)}")
    return RunState("unknown", f"no new line for {duration(recent.age)}; a log does not say whether its run has ended")


def _running(recent: RecentSteps) -> RunState:
    """The state of a run that still writes, by its last steps; the worst news comes first."""
    applied = [loss for loss, action in zip(recent.losses, recent.actions, strict=True) if action == "apply"]
    bad = sum(1 for loss in applied if not math.isfinite(loss))
    if applied and bad:
        said = "applied steps has a loss that is" if bad == 1 else "applied steps have a loss that is"
        return RunState("diverging", f"{bad} of the last {len(applied)} {said} not finite")
    # the loss of a policy changes its sign: how large it is says nothing
    if recent.best is not None and len(applied) >= 20 and recent.best > 0 and min(applied) > 0:
        now = median(applied[-20:])
        if now > _DIVERGING * recent.best:
            return RunState("diverging", f"the loss is {now / recent.best:.1f} times its best")
    skipped = sum(1 for action in recent.actions if action in ("skip", "rollback"))
    if skipped >= max(3, _SKIPPING * len(recent.actions)):
        return RunState("skipping", f"{skipped} of the last {len(recent.actions)} steps were skipped")
    if "rollback" in recent.actions:
        return RunState("recovering", "rolled back recently")
    if recent.since_incident is not None and recent.since_incident <= 10 * RECENT:
        return RunState("incidents", f"last incident {counted(recent.since_incident, 'step')} ago")
    return RunState("healthy", recent.without_incident)


def _usual(seconds: float) -> str:
    """How long a step takes; most steps take less than the tenth of a second that `duration` begins with."""
    return duration(seconds) if seconds >= 0.95 else f"{seconds:.1g} s"


# ---- what the list shows of it


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
        judged = replace(self.judged, age=max(0.0, now - self.modified), alive=_is_alive(self.process))
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
    end = ending(journal, most_bytes=_TAIL_BYTES)
    rows = end.rows
    info = read_json(folder / "run.json")
    recent = rows[-RECENT:]
    last = rows[-1] if rows else None
    event = next((row for row in reversed(rows) if row.incident or row.action in ("skip", "rollback", "stop")), None)
    total = info.get("total_steps")
    judged = RecentSteps(
        losses=[row.numbers.get("loss", math.nan) for row in recent],
        actions=[row.action for row in recent],
        milliseconds=median([row.milliseconds for row in recent]) if recent else 0.0,
        steps=last.step + 1 if last else 0,
        total=total if isinstance(total, int) else None,
        incidents=len(incident_folders(folder)),
        whole=not rows or rows[0].step == 0,
        since_incident=last.step - event.step if last and event else None,
        ended=end.over is not None,
        error=visible(str(end.over.get("error", ""))) if end.over is not None else "",
        best=best,
    )
    if end.over is not None and journal.stat().st_size <= _JUDGED_BYTES:
        judged = replace(judged, verdict=verdict_of(open_run(folder)))
    summary = _summary(ident, folder, root, rows, judged, modified)
    return replace(summary, event=event, process=_process(info))


def summary_of_log(ident: str, path: Path, root: Path, *, modified: float) -> Summary | None:
    """The summary of a log that nantrap did not write; `None` for a file that is no log of a training run."""
    try:
        log = ForeignLog(path, last_bytes=_TAIL_BYTES)
    except (NantrapError, OSError):
        return None
    if not log.is_training:
        return None
    rows = log.rows(most=600)
    losses = [row.numbers["loss"] for row in rows if "loss" in row.numbers][-RECENT:]
    judged = RecentSteps(
        losses=losses,
        actions=["apply"] * len(rows[-RECENT:]),
        milliseconds=1000 * log.seconds_between_lines,
        steps=rows[-1].step if rows else 0,
        total=log.run.total_steps,
        ended=log.run.is_over,
        verdict=log.verdict(),
    )
    return replace(_summary(ident, path, root, rows, judged, modified), kind=log.run.kind)


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


def _process(info: Mapping[str, Any]) -> int | None:
    """The process of the last start of a run."""
    starts = [info, *(entry for entry in info.get("resumed", ()) if isinstance(entry, dict))]
    pid = starts[-1].get("pid")
    return pid if isinstance(pid, int) and not isinstance(pid, bool) and pid > 0 else None


def _is_alive(pid: int | None) -> bool | None:
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
