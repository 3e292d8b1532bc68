"""How a run is doing, in one word: from its journal alone, so that a page can show it for thousands of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from nantrap.incident.wording import counted
from nantrap.report.numbers import duration

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
    "diverging",
    "stalled",
    "skipping",
    "recovering",
    "incidents",
    "unknown",
    "healthy",
    "finished",
)
"""The states, those that need attention first."""

_SIGNS = {
    "stopped": ("bad", "✖"), "dead": ("bad", "✖"), "diverging": ("bad", "✖"), "stalled": ("warn", "?"),
    "skipping": ("warn", "▲"), "recovering": ("warn", "↶"), "incidents": ("warn", "▲"), "unknown": ("muted", "?"),
    "healthy": ("ok", "✓"), "finished": ("muted", "■"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recent:
    """The last steps of a run.

    Attributes:
        losses: of the last steps, oldest first, skipped ones included.
        actions: of the same steps.
        milliseconds: how long a step usually takes; 0 if it is not known.
        steps: attempted so far.
        total: steps of the whole run, where that is known.
        incidents: so far.
        since_incident: steps since the last incident, `None` without one.
        age: seconds since the last line.
        alive: whether its process is running; `None` if that is not known.
        ended: whether the run recorded its end.
        error: the class of the exception that ended it; empty if none did.
        best: the smallest middle loss of an earlier stretch, where known.
        foreign: whether it is a log of another tool, which says nothing of its process.
    """

    losses: Sequence[float]
    actions: Sequence[str]
    milliseconds: float = 0.0
    steps: int = 0
    total: int | None = None
    incidents: int = 0
    since_incident: int | None = None
    age: float = 0.0
    alive: bool | None = None
    ended: bool = False
    error: str = ""
    best: float | None = None
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """A word for the state, a sentence that says why, and a sign and a colour."""

    word: str
    reason: str

    @property
    def sign(self) -> str:
        """The sign next to the word."""
        return _SIGNS[self.word][1]

    @property
    def tone(self) -> str:
        """`bad`, `warn`, `ok` or `muted`."""
        return _SIGNS[self.word][0]

    @property
    def rank(self) -> int:
        """Small for what needs attention."""
        return ORDER.index(self.word)


def state_of(recent: Recent) -> State:
    """The state of a run, the worst that is true of it."""
    if not recent.actions:
        return State("unknown", "no step yet")
    if recent.actions[-1] == "stop":
        return State("stopped", "the guard stopped the run")
    done = recent.total is not None and recent.steps >= recent.total
    usual = recent.milliseconds / 1000
    patience = max(_STALLED_LEAST_SECONDS, _STALLED_FACTOR * usual)
    if recent.error:
        return State("dead", f"ended by {recent.error}")
    if done or recent.ended:
        return State("finished", "all steps are done" if done else "the run has ended")
    if recent.foreign:
        return _foreign(recent)
    if recent.age > patience:
        if recent.alive is False:
            return State("dead", "its process is gone and it did not record its end")
        said = f"no step for {duration(recent.age)}" + (f", usually {_usual(usual)}" if usual else "")
        return State("stalled", said)
    return _running(recent)


def _foreign(recent: Recent) -> State:
    """A log says nothing when its run ends: after a day without a line, nothing is known."""
    running = _running(recent)
    usual = recent.milliseconds / 1000
    patience = max(_STALLED_LEAST_SECONDS, _STALLED_FACTOR * usual) if usual else _QUIET_SECONDS
    if running.tone == "bad" or recent.age <= patience:
        return running
    if recent.age < _FORGOTTEN_SECONDS:
        return State("stalled", f"no new line for {duration(recent.age)}")
    return State("unknown", f"no new line for {duration(recent.age)}; a log does not say whether its run has ended")


def _running(recent: Recent) -> State:
    """The state of a run that still writes, by its last steps; the worst news comes first."""
    applied = [loss for loss, action in zip(recent.losses, recent.actions, strict=True) if action == "apply"]
    bad = sum(1 for loss in applied if not math.isfinite(loss))
    if applied and bad:
        one = bad == 1
        foreign = "losses is" if one else "losses are"
        own = "applied steps has a loss that is" if one else "applied steps have a loss that is"
        return State("diverging", f"{bad} of the last {len(applied)} {foreign if recent.foreign else own} not finite")
    if recent.best is not None and len(applied) >= 20 and recent.best > 0:
        now = median(applied[-20:])
        if now > _DIVERGING * recent.best:
            return State("diverging", f"the loss is {now / recent.best:.1f} times its best")
    skipped = sum(1 for action in recent.actions if action in ("skip", "rollback"))
    if skipped >= max(3, _SKIPPING * len(recent.actions)):
        return State("skipping", f"{skipped} of the last {len(recent.actions)} steps were skipped")
    if "rollback" in recent.actions:
        return State("recovering", "rolled back recently")
    if recent.since_incident is not None and recent.since_incident <= 10 * RECENT:
        return State("incidents", f"last incident {counted(recent.since_incident, 'step')} ago")
    if recent.foreign:
        return State("healthy", "the recent losses are finite")
    return State("healthy", "no recent incident" if recent.incidents else "no incident")


def _usual(seconds: float) -> str:
    """How long a step takes; most steps take less than the tenth of a second that `duration` begins with."""
    return duration(seconds) if seconds >= 0.95 else f"{seconds:.1g} s"
