"""How a run is doing, in one word and with the reason: the same in the terminal, in the list of runs and in `/metrics`.

It is judged by the last steps, by the age of the last line and by the process; of a log of another tool, and of a run
that has ended, by the verdict of `nantrap check`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from nantrap.health import HealthVerdict
from nantrap.incident.wording import counted, duration, visible
from nantrap.record import ACTIONS, Run, Series

PROBE = "probe"
"""The action of a step that a GradScaler left out while it searched its scale."""
RECENT = 100
"""Steps that count as recent."""
_SKIPPING = 0.1
_STALLED_FACTOR = 20.0
_STALLED_LEAST_SECONDS = 60.0
_QUIET_SECONDS = 600.0
_FORGOTTEN_SECONDS = 86_400.0
_DIVERGING = 3.0

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

SIGNS = {
    "stopped": ("bad", "✖"), "dead": ("bad", "✖"), "sick": ("bad", "✖"), "diverging": ("bad", "✖"),
    "stalled": ("warn", "?"), "doubtful": ("warn", "▲"),
    "skipping": ("warn", "▲"), "recovering": ("warn", "↶"), "incidents": ("warn", "▲"), "unknown": ("muted", "?"),
    "healthy": ("ok", "✓"), "finished": ("muted", "■"),
}  # fmt: skip


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
        return SIGNS[self.health or self.word][1]

    @property
    def tone(self) -> str:
        """`bad`, `warn`, `ok` or `muted`."""
        return SIGNS[self.health or self.word][0]

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


# ---- the last steps of a run that was opened


def recent_steps(run: Run, series: Series) -> RecentSteps:
    """What the state is judged by, as far as the lines that were read tell it: neither its age nor its process."""
    first = max(0, len(series) - RECENT)
    losses = np.full(len(series) - first, math.nan)
    column = series.get("loss")
    if column is not None:
        inside = column.row >= first
        losses[column.row[inside] - first] = column.value[inside]
    left_out = ~series.applied & ~series.refused
    actions = [PROBE if left_out[row] else ACTIONS[series.action[row]] for row in range(first, len(series))]
    noted = np.flatnonzero(series.refused)
    incidents = series.labels("incident.phase")
    if incidents is not None:
        noted = np.union1d(noted, incidents.row)
    return RecentSteps(
        losses=losses.tolist(),
        actions=actions,
        milliseconds=1000 * seconds_between_lines(series),
        steps=run.steps_done,
        total=run.total_steps,
        incidents=len(run.incidents),
        whole=not len(series) or int(series.step[0]) == 0,
        since_incident=int(series.step[-1] - series.step[noted[-1]]) if len(noted) else None,
        ended=run.is_over,
        error=visible(str(run.end.fields.get("error", ""))) if run.end is not None else "",
    )


def verdict_of(found: HealthVerdict) -> tuple[str, str]:
    """The verdict of `nantrap check` in a word, and its first reason."""
    why = (finding for finding in found.findings if finding.outcome == found.outcome)
    return found.word, next((visible(finding.summary) for finding in why), "")


def seconds_between_lines(series: Series) -> float:
    """How long it usually takes from one line to the next; 0 if the log has no times."""
    times = series.get("wall_time")
    if times is not None and len(times) > 2:
        return max(0.0, float(np.median(np.diff(times.value[-200:]))))
    step_ms = series.get("ms")
    if step_ms is None or not len(step_ms):
        return 0.0
    steps = np.diff(series.step[-200:])
    usual = float(np.nanmedian(step_ms.value[-200:])) / 1000
    return usual * max(1.0, float(np.median(steps)) if len(steps) else 1.0)


def process_of(info: Mapping[str, Any]) -> int | None:
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
