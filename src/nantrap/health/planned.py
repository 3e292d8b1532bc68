"""A part of a run against what the plan expects of it."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nantrap.health.checks import applied_steps, falling_loss, improvement, incidents, limits_of
from nantrap.health.expectations import Expectations, Expected, Limits, PlannedStage
from nantrap.health.findings import OUTCOMES, CheckOutcome, HealthFinding, number, share
from nantrap.health.trend import spikes
from nantrap.health.window import LogWindow
from nantrap.incident.wording import counted
from nantrap.problems import worst
from nantrap.record import Column


@dataclass(frozen=True, slots=True)
class StageVerdict:
    """A stage of the plan against the run. `state` says whether the run has passed through it."""

    name: str
    span: str
    state: Literal["not reached", "in progress", "ended early", "complete"]
    findings: tuple[HealthFinding, ...]

    @property
    def outcome(self) -> CheckOutcome:
        """The worst of its findings."""
        return OUTCOMES[worst(self.findings)]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "name": self.name, "span": self.span, "state": self.state, "outcome": self.outcome,
            "findings": [finding.to_dict() for finding in self.findings],
        }  # fmt: skip


def judge_stage(window: LogWindow, stage: PlannedStage, plan: Expectations) -> StageVerdict:
    """One stage of the plan."""
    place = _position(window, stage, plan)
    if place is None:
        words = "the log has no epochs; set steps_per_epoch in the plan, or give the stage in steps"
        return StageVerdict(
            stage.name, stage.span, "not reached", (HealthFinding("epochs", "warning", f"not judged: {words}"),)
        )
    inside = (place >= stage.first) & (place <= (np.inf if stage.last is None else stage.last)) & window.rows
    if not inside.any():
        return StageVerdict(stage.name, stage.span, "not reached", ())
    beyond = stage.last is not None and bool((place[window.rows] > stage.last).any())
    # the last step or epoch of a stage may be there without a step after it
    over = window.run.is_over
    at_end = stage.last is not None and bool((place[window.rows] >= stage.last).any())
    state: Literal["in progress", "ended early", "complete"]
    if beyond or (at_end and (over or stage.unit == "steps")) or (over and stage.last is None):
        state = "complete"
    else:
        state = "ended early" if over else "in progress"
    part = LogWindow(window.run, window.series, inside)
    return StageVerdict(stage.name, stage.span, state, tuple(compare(part, stage.expected)))


def compare(window: LogWindow, expected: Expected) -> Iterator[HealthFinding]:
    """What the plan expects, one finding each."""
    if expected.loss is not None:
        yield from _loss(window, expected.loss)
    if expected.incidents is not None:
        yield from _incidents(window, expected.incidents)
    if expected.applied is not None:
        yield from _applied(window, expected.applied)
    if expected.spikes is not None:
        yield from _spikes(window, expected.spikes)
    if expected.lr:
        yield from _lr(window, expected)
    for pattern, limits in expected.values.items():
        yield from _values(window, pattern, limits)
    for name, limits_or_none in expected.evaluation.items():
        yield from _evaluation(window, name, limits_or_none)


def _position(window: LogWindow, stage: PlannedStage, plan: Expectations) -> NDArray[Any] | None:
    """The epoch, counted from 1, or the step of each row."""
    series = window.series
    if stage.unit == "steps":
        return series.step
    if plan.steps_per_epoch:
        return series.step // plan.steps_per_epoch + 1
    column = series.get("epoch")
    if column is None or not len(column):
        return None
    known = np.searchsorted(column.row, np.arange(len(series)), side="right") - 1
    epoch = np.where(known >= 0, column.value[np.maximum(known, 0)], column.value[0])
    if (column.value != np.floor(column.value)).any():
        return np.maximum(np.ceil(epoch), 1)  # 0.1 lies in the first epoch
    return epoch + (1 if column.value.min() == 0 else 0)


def _loss(window: LogWindow, expected: Literal["falls", "stable"] | Limits) -> Iterator[HealthFinding]:
    """Whether the loss falls, is stable or ends within its limits, as the plan says."""
    if isinstance(expected, Limits):
        column = window.column("loss")
        if column is None:
            yield HealthFinding("loss", "unjudged", "the log has no loss")
        else:
            tenth = max(1, len(column) // 10)
            value = float(np.median(column.value[-tenth:])) if len(column) else float("nan")
            good = (expected.below is None or value <= expected.below) and (
                expected.above is None or value >= expected.above
            )
            wanted = (
                f"below {number(expected.below)}"
                if expected.below is not None
                else f"above {number(expected.above or 0.0)}"
            )
            words = f"the loss ends at {number(value)} (median of the last tenth), expected {wanted}"
            yield HealthFinding("loss", "ok" if good else "error", words, data={"last": value})
        return
    bad = window.column("loss")
    if bad is not None and (amount := int((~np.isfinite(bad.value) & window.applied(bad)).sum())):
        words = f"{share(amount, len(bad))} losses not finite, expected a loss that is {expected}"
        yield HealthFinding("loss", "error", words, data={"nonfinite": amount})
    for finding in falling_loss(window):
        flat_is_well = expected == "stable" and finding.data.get("direction") == "flat"
        outcome = "ok" if finding.severity == "warning" and flat_is_well else finding.severity
        if outcome == "warning":
            outcome = "error"  # the plan asked for it
        yield HealthFinding("loss", outcome, finding.message, data=finding.data, fix=finding.fix)
    if bad is None:
        yield HealthFinding("loss", "unjudged", "the log has no loss")


def _incidents(window: LogWindow, most: int) -> Iterator[HealthFinding]:
    """Whether there were at most as many incidents, or lines about errors, as the plan allows."""
    for finding in incidents(window):
        if finding.code not in ("incidents", "log_lines"):
            continue
        amount = int(finding.data.get("incidents", finding.data.get("lines", 0)))
        outcome: Literal["ok", "error"] = "ok" if amount <= most else "error"
        yield HealthFinding(
            "incidents", outcome, f"{finding.message} (at most {most:,} expected)", data=finding.data, fix=finding.fix
        )
        return
    yield HealthFinding(
        "incidents", "ok", f"no line mentions NaN or an error (at most {most:,} expected)", data={"incidents": 0}
    )


def _applied(window: LogWindow, least: float) -> Iterator[HealthFinding]:
    for finding in applied_steps(window):
        part = finding.data["applied"] / finding.data["steps"]
        words = f"{finding.message} (at least {100 * least:g}% expected)"
        yield HealthFinding("applied", "ok" if part >= least else "error", words, data=finding.data)
        return
    yield HealthFinding("applied", "warning", "not judged: the log does not say which steps were applied")


def _spikes(window: LogWindow, most: int) -> Iterator[HealthFinding]:
    column = window.column("loss")
    values = np.empty(0) if column is None else column.value[np.isfinite(column.value)]
    amount = len(spikes(values))
    words = f"{counted(amount, 'spike')} in the loss (at most {most:,} expected)"
    yield HealthFinding("spikes", "ok" if amount <= most else "error", words, data={"spikes": amount})


def _lr(window: LogWindow, expected: Expected) -> Iterator[HealthFinding]:
    """Whether first, largest and last learning rate are those of the plan, within one percent."""
    column = window.column("lr")
    if column is None or not len(column):
        yield HealthFinding("lr", "warning", "not judged: the log has no learning rate")
        return
    found = {"first": float(column.value[0]), "peak": float(column.value.max()), "last": float(column.value[-1])}
    for key, wanted in expected.lr.items():
        if key in found:
            value = found[key]
            close = abs(value - wanted) <= 0.01 * abs(wanted)
            step = int(column.step[0 if key == "first" else int(column.value.argmax()) if key == "peak" else -1])
            words = f"{key} learning rate {number(value)} (step {step:,}), configured {number(wanted)}"
            help = "" if close else "a resumed optimizer or scheduler keeps the learning rate of its checkpoint"
            yield HealthFinding(
                "lr", "ok" if close else "error", words, data={"found": value, "expected": wanted}, fix=help
            )
    if expected.lr.keys() & {"above", "below"}:
        yield from limits_of(column, low=expected.lr.get("above"), high=expected.lr.get("below"), check="lr")


def _values(window: LogWindow, pattern: str, limits: Limits) -> Iterator[HealthFinding]:
    """Whether the columns that match a pattern stay within their limits."""
    names = [
        name
        for name in window.series.names
        if fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name.removeprefix("watch."), pattern)
    ]
    if not names and (column := window.series.get(pattern)) is not None:
        names = [column.name]
    if not names:
        some = ", ".join(window.series.names[:6])
        yield HealthFinding(
            "values",
            "warning",
            f"not judged: no column matches {pattern!r}; the log has {some}",
            data={"pattern": pattern},
        )
    for name in names:
        if (found := window.column(name)) is not None:
            yield from limits_of(found, low=limits.above, high=limits.below, check="values")


def _evaluation(window: LogWindow, name: str, limits: Limits | None) -> Iterator[HealthFinding]:
    """Whether an evaluation improved, or ended within its limits."""
    results = window.evaluations()
    column = results.get(name) or results.get(f"eval_{name}") or results.get(f"val_{name}")
    if column is None:
        words = f"no evaluation named {name!r}" + (f"; there are {', '.join(results)}" if results else "")
        yield HealthFinding("evaluation", "warning", f"not judged: {words}")
    elif limits is None:
        finding = improvement(name, column)
        outcome = "error" if finding.severity == "warning" else finding.severity
        yield HealthFinding("evaluation", outcome, finding.message, data=finding.data, fix=finding.fix)
    else:
        last = Column(name, column.step[-1:], column.row[-1:], column.value[-1:])
        yield from limits_of(last, low=limits.above, high=limits.below, check="evaluation")
