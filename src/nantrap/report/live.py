"""What a live view of a run shows, as plain data: the same for the terminal application and for plain lines."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from nantrap import health
from nantrap.incident.wording import duration, visible
from nantrap.incident.wording import value as number
from nantrap.record import Column, Run, Series
from nantrap.report.states import is_alive, process_of, recent_steps, state_of, verdict_of
from nantrap.report.terminal import render_incident

BARS: Final = "▁▂▃▄▅▆▇█"
BAD: Final = "×"
_FIRST = ("loss", "lr", "grad_norm", "scale")
_HIDDEN = frozenset({"epoch", "ms", "wall_time", "step", "dropped"})
_TOLD = frozenset({"stopped", "dead", "sick", "diverging", "stalled", "finished"})
"""The states that are shown as they are; any other is that of a run that makes its steps."""


@dataclass(frozen=True, slots=True)
class LiveValue:
    """A row of the view: a column with its last value and its course."""

    name: str
    last: str
    spark: str
    low: str
    high: str
    alarm: str = ""
    gaps: int = 0

    @property
    def course(self) -> str:
        """The range of the finite values and, with the sign of the curve, how many are not finite."""
        gaps = f"{self.gaps:,} {BAD}" if self.gaps else ""
        return ", ".join(part for part in (f"{self.low} … {self.high}" if self.low else "", gaps) if part)


@dataclass(frozen=True, slots=True)
class LiveRank:
    """A rank at a glance."""

    rank: int
    step: int
    loss: str
    skipped: int


@dataclass(frozen=True, slots=True)
class LiveView:
    """All that is shown of a run at one moment."""

    name: str
    state: str
    written: str
    step: int
    done: int
    total_steps: int | None
    epoch: str
    speed: str
    remaining: str
    values: tuple[LiveValue, ...]
    steps: int
    applied: int
    skipped: int
    rollbacks: int
    scaler_probes: int
    incidents: int
    ranks: tuple[LiveRank, ...]
    trouble: tuple[str, ...]
    verdict: str = ""

    @property
    def share(self) -> float | None:
        """How much of the run is done, where its length is known."""
        return min(1.0, self.done / self.total_steps) if self.total_steps else None

    @property
    def headline(self) -> str:
        """State, place and speed in one line."""
        return " · ".join(self.facts)

    @property
    def facts(self) -> tuple[str, ...]:
        """The parts of the headline, none of which should be broken at the end of a line."""
        total = f" of {self.total_steps:,} ({100 * (self.share or 0):.1f}%)" if self.total_steps else ""
        place = f"step {self.step:,}{total}" if self.step >= 0 else "no step yet"
        judged = f"check: {self.verdict}" if self.verdict else ""
        parts = [self.state, place, self.epoch, self.speed, self.remaining, f"written {self.written} ago", judged]
        return tuple(part for part in parts if part)


def view_of(
    run: Run,
    *,
    now: float,
    rank: int | None = None,
    verdict: health.HealthVerdict | None = None,
    width: int = 30,
    window: int | None = None,
    log: bool = True,
) -> LiveView:
    """The view of a run.

    Args:
        run: as opened; `run.refresh()` beforehand brings it up to date.
        rank: whose values to show; the lowest rank's by default.
        now: the time, in seconds since the epoch.
        verdict: the health of the run, whose word and failed checks are shown; it takes too long for every update.
        width: characters of a sparkline.
        window: only this many of the last rows.
        log: sparklines of positive values on a logarithmic scale.
    """
    series = run.main if rank is None or rank not in run.series else run.series[rank]
    tally = run.tally(rank)
    step = int(series.step[-1]) if len(series) else -1
    total = run.total_steps
    age = max(0.0, now - run.modified)
    state = _state(run, series, age, verdict)
    seconds = _seconds_per_step(series)
    left = f"{duration((total - run.steps_done) * seconds)} left" if seconds and total and state == "running" else ""
    return LiveView(
        name=visible(run.name),
        state=state,
        written=duration(age),
        step=step,
        done=run.steps_done,
        total_steps=total,
        epoch=_epoch(run, series),
        speed=f"{1 / seconds:.3g} steps/s" if seconds and math.isfinite(1 / seconds) else "",
        remaining=left,
        values=tuple(_values(run, series, width, window, log=log)),
        steps=tally.attempted,
        applied=tally.applied,
        skipped=tally.skipped,
        rollbacks=tally.rollbacks,
        scaler_probes=tally.scaler_probes,
        incidents=tally.incidents,
        ranks=tuple(_rank(run, own) for own in run.series.values()) if len(run.ranks) > 1 else (),
        trouble=tuple(
            visible(found.summary)
            for found in (verdict.findings if verdict else ())
            if found.outcome == "fail" or found.check == "log_lines"
        ),
        verdict=verdict.word if verdict and (len(series) or verdict.word != "unknown") else "",
    )


def sparkline(column: Column, *, width: int, log: bool = True) -> str:
    """The course of a column in one line of block characters; `×` where values are not finite."""
    if not len(column) or width < 1:
        return ""
    with np.errstate(all="ignore"):  # sums of huge values overflow: the bar is at the top then
        return _bars(column, width, log=log)


def _bars(column: Column, width: int, *, log: bool) -> str:
    """A curve in one line of text: a block for each group of steps, another sign where few or none were finite."""
    edges = np.linspace(0, len(column), min(width, len(column)) + 1).astype(np.int64)[:-1]
    finite = np.isfinite(column.value)
    good = np.add.reduceat(finite, edges, dtype=np.int64)
    count = np.diff(np.append(edges, len(column)))
    mean = np.add.reduceat(np.where(finite, column.value, 0.0), edges) / np.maximum(good, 1)
    high = np.maximum.reduceat(np.where(finite, column.value, -np.inf), edges)
    gap = 4 * good < count  # single steps that were skipped are counted elsewhere
    level = np.where(high > 3 * np.abs(mean), high, mean)  # a spike shows by its height
    level = np.clip(np.where(gap, np.nan, level), -1e300, 1e300)
    if log and (level[~gap] > 0).all():
        level = np.log(level)
    low, top = (np.nanmin(level), np.nanmax(level)) if not gap.all() else (0.0, 0.0)
    flat = top - low <= 1e-12 * max(abs(low), abs(top))  # equal values: their means differ by rounding alone
    scaled = np.full(len(level), 0.5) if flat else (level - low) / (top - low)
    return "".join(
        BAD if bad else BARS[min(len(BARS) - 1, int(part * len(BARS)))] for part, bad in zip(scaled, gap, strict=True)
    )


def incident_texts(run: Run, *, width: int | None, color: bool = False, brief: bool = False) -> list[str]:
    """The diagnostics of a run, the oldest first; of a text log, the lines that report a problem."""
    texts = [
        render_incident(folder.incident, color=color, width=width, brief=brief, here=True)
        if folder.incident is not None
        else visible(folder.error)
        for folder in run.incidents
    ]
    return texts + [f"line {note.line:,}, step {note.step:,}: {visible(note.text)}" for note in run.notes]


def new_lines(run: Run, *, since: int) -> Iterator[str]:
    """What happened from row `since` on, for a pipe: the last step, and every step that was not applied."""
    series = run.main
    for event in series.events(limit=100):
        if event.row >= since:
            where = f" in {visible(event.phase or '?')} at {visible(event.module or '?')}" if event.phase else ""
            cause = f": {visible(event.cause)}" if event.cause else ""
            yield f"step {event.step:,}  {event.action}{where}{cause}"
    for note in run.notes:
        if note.row >= since:
            yield f"line {note.line:,}  {visible(note.text)}"
    if len(series) > since:
        row = len(series) - 1
        cells = []
        for name in _shown(series):
            column = series.get(name)
            if column is not None and len(column) and column.row[-1] >= since:
                cells.append(f"{visible(name)} {number(float(column.value[-1]), 4)}")
        yield f"step {int(series.step[row]):,}  " + "  ".join(cells[:8])


def _state(run: Run, series: Series, age: float, verdict: health.HealthVerdict | None) -> str:
    """What the run does now, in the words of the list of runs; `running` where nothing stands out."""
    if not len(series):
        return "waiting"
    judged = None
    if run.kind != "nantrap":  # a log of another tool says nothing of its process
        judged = verdict_of(verdict or health.judge(run))
    recent = replace(recent_steps(run, series), age=age, alive=is_alive(process_of(run.info)), verdict=judged)
    word = state_of(recent).word
    return word if word in _TOLD else "running"


def _seconds_per_step(series: Series) -> float | None:
    """How long a step takes: the median of the last measured ones, else the average by the clock. `None` if unknown."""
    column = series.get("ms")
    if column is not None and len(column):
        middle = float(np.median(column.value[-50:])) / 1e3
        return middle if middle > 0 else None
    clock = series.get("wall_time")
    if clock is not None and len(clock) > 1:
        recent = slice(max(0, len(clock) - 500), None)
        steps = float(np.ptp(clock.step[recent]))
        return float(np.ptp(clock.value[recent])) / steps if steps else None
    return None


def _epoch(run: Run, series: Series) -> str:
    column = series.get("epoch")
    if column is None or not len(column):
        return ""
    total = f" of {run.total_epochs}" if run.total_epochs else ""
    return f"epoch {column.value[-1]:.4g}{total}"


def _shown(series: Series) -> list[str]:
    """The columns worth a row, the usual ones first; the same column never twice."""
    first = [column.name for name in _FIRST if (column := series.get(name)) is not None]
    return [*first, *(name for name in series.names if name not in first and name not in _HIDDEN)]


def _values(run: Run, series: Series, width: int, window: int | None, *, log: bool) -> Iterator[LiveValue]:
    """The rows of the live view: last value, sparkline, range and alarm of each curve and each evaluation result."""
    limits = run.info.get("watch")
    columns = [(name, series.get(name)) for name in _shown(series)]
    known = {name for name, _ in columns}
    columns += [(f"eval {name}", column) for name, column in run.evaluations.items() if name not in known]
    for name, column in columns:
        if column is None or not len(column):
            continue
        if window is not None:
            inside = column.row >= len(series) - window
            if inside.any():
                column = Column(name, column.step[inside], column.row[inside], column.value[inside])
        finite = column.value[np.isfinite(column.value)]
        low, high = (number(float(f), 3) if len(finite) else "" for f in _ends(finite))
        last = float(column.value[-1])
        yield LiveValue(
            visible(name.removeprefix("watch.")),
            number(last, 5),
            sparkline(column, width=width, log=log),
            low,
            high,
            _alarm(name, column, limits),
            len(column) - len(finite),
        )


def _ends(finite: Any) -> tuple[float, float]:
    return (float(finite.min()), float(finite.max())) if len(finite) else (math.nan, math.nan)


def _alarm(name: str, column: Column, limits: Any) -> str:
    """What is wrong with the last value: not finite, or beyond a limit of the run."""
    last, step = float(column.value[-1]), int(column.step[-1])
    if not math.isfinite(last):
        return "not finite"
    for pattern, bounds in limits.items() if isinstance(limits, dict) else ():
        if not fnmatch.fnmatchcase(name, f"watch.{pattern}"):
            continue
        for bound in bounds if isinstance(bounds, list) else ():
            until = bound.get("until")
            if until is not None and step >= until:
                continue
            if bound.get("max") is not None and last > bound["max"]:
                return f"above {bound['max']:g}"
            if bound.get("min") is not None and last < bound["min"]:
                return f"below {bound['min']:g}"
    return ""


def _rank(run: Run, series: Series) -> LiveRank:
    loss = series.get("loss")
    last = number(float(loss.value[-1]), 5) if loss is not None and len(loss) else ""
    return LiveRank(series.rank, int(series.step[-1]) if len(series) else -1, last, run.tally(series.rank).skipped)
