"""The checks that every run gets, with or without a plan: each checks a window and returns what it found.

The limits are meant for runs without a plan. What a particular run should do belongs in a plan
(`expectations.py`).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from nantrap.health.finding import Finding, Outcome
from nantrap.health.trend import LEAST, spikes, trend
from nantrap.health.window import Window
from nantrap.health.words import number, share
from nantrap.incident.wording import counted
from nantrap.record import Column

_DEAD = 10
"""Number of losses at the end that are not finite, or of steps that were not applied, after which a run is called
dead."""
_FROZEN = 50
_LOWER_IS_BETTER = re.compile(r"loss|err|ppl|perplex|wer|cer|fid|mse|mae|rmse|nll|bpb|bpd|kl|distance", re.I)


def finite_loss(window: Window) -> Iterator[Finding]:
    """Is the loss finite, and is the run still alive?"""
    loss = window.column("loss")
    if loss is None or not len(loss):
        yield Finding(
            "loss_finite",
            "unknown",
            "the log has no loss",
            help="known names are loss, train_loss, train/loss, total_loss and similar ones",
        )
        return
    bad = ~np.isfinite(loss.value)
    total, amount = len(loss), int(bad.sum())
    evidence = {"column": loss.name, "values": total, "nonfinite": amount}
    tail = total - (int(np.flatnonzero(~bad)[-1]) + 1 if amount < total else 0)
    if tail >= min(_DEAD, max(3, total // 2)) or (amount == total and total):
        since = int(loss.step[total - tail])
        evidence["dead_since"] = since
        yield Finding(
            "loss_finite", "fail",
            f"dead since step {since:,}: no finite loss in the last {counted(tail, 'value')}", evidence,
            help="resume from a checkpoint before it (nantrap audit finds a healthy one), under nantrap run",
        )  # fmt: skip
        return
    if not amount:
        yield Finding("loss_finite", "pass", f"all {counted(total, 'loss', 'losses')} finite", evidence)
        return
    first = int(loss.step[np.flatnonzero(bad)[0]])
    contained = not (bad & window.applied(loss)).any() and window.run.kind == "nantrap"
    outcome: Outcome = "warn" if contained or amount <= 0.01 * total else "fail"
    after = "; none of them reached the weights" if contained else ", and the run continued"
    yield Finding(
        "loss_finite",
        outcome,
        f"{share(amount, total)} losses not finite, the first at step {first:,}{after}",
        evidence,
    )


def falling_loss(window: Window) -> Iterator[Finding]:
    """Does the loss fall, stay, rise, or rise again?"""
    loss = window.column("loss")
    if loss is None:
        return
    good = np.isfinite(loss.value) & window.applied(loss)
    values = loss.value[good]
    found = trend(values)
    if found is None:
        words = f"only {counted(len(values), 'finite loss', 'finite losses')}: too few for a trend (needs {LEAST})"
        yield Finding("loss_falls", "unknown", words, {"values": len(values)})
        return
    evidence = {"first": found.first, "last": found.last, "low": found.low, "direction": found.direction}
    ends = f"from {number(found.first)} to {number(found.last)} (medians of the first and the last tenth)"
    low_step = int(loss.step[good][found.low_index])
    if np.ptp(values[-_FROZEN:]) == 0 and len(values) >= _FROZEN:
        printed = window.run.kind in ("text", "csv")  # a printed loss may have few digits
        yield Finding(
            "loss_falls", "warn" if printed else "fail",
            f"the loss does not change any more: {number(found.last)} in the last {_FROZEN} values", evidence,
            help="do gradients reach the weights (grad_norm), and is the learning rate above 0?",
        )  # fmt: skip
    elif found.direction == "rises":
        help = "a loss that rises from the start points to the learning rate, the sign of a term, or the data"
        yield Finding("loss_falls", "fail", f"the loss rises {ends}", evidence, help=help)
    elif found.last - found.low > max(0.3 * (found.first - found.low), found.noise, 8 * found.error):
        yield Finding(
            "loss_falls", "fail",
            f"the loss diverges: {number(found.low)} around step {low_step:,}, {number(found.last)} at the end",
            evidence,
            help=f"resume from a checkpoint at or before step {low_step:,} with a lower learning rate",
        )  # fmt: skip
    elif found.direction == "flat":
        yield Finding("loss_falls", "warn", f"the loss shows no clear trend: {ends}, within its noise", evidence)
    else:
        yield Finding("loss_falls", "pass", f"the loss falls {ends}", evidence)


def loss_spikes(window: Window) -> Iterator[Finding]:
    """Does the loss jump?"""
    loss = window.column("loss")
    if loss is None:
        return
    good = np.isfinite(loss.value) & window.applied(loss)
    values, steps = loss.value[good], loss.step[good]
    if len(values) < 2 * LEAST:
        return
    found = spikes(values)
    evidence: dict[str, Any] = {"spikes": len(found), "values": len(values)}
    if not len(found):
        yield Finding("spikes", "pass", "no spike in the loss", evidence)
        return
    top = found[np.argsort(values[found])[::-1][:3]]
    evidence["largest"] = [{"step": int(steps[i]), "loss": float(values[i])} for i in top]
    examples = ", ".join(f"{number(values[i])} at step {steps[i]:,}" for i in top)
    outcome: Outcome = "warn" if len(found) > max(1, 0.001 * len(values)) else "pass"
    yield Finding("spikes", outcome, f"{counted(len(found), 'spike')} in the loss; the largest: {examples}", evidence)


def applied_steps(window: Window) -> Iterator[Finding]:
    """How many steps moved the weights?"""
    if window.run.kind != "nantrap" or not window.rows.any():
        return
    applied = window.series.applied[window.rows]
    total, skipped = len(applied), int((~applied).sum())
    evidence = {"steps": total, "applied": total - skipped}
    tail = total - (int(np.flatnonzero(applied)[-1]) + 1 if applied.any() else 0)
    if tail >= _DEAD:
        since = int(window.series.step[window.rows][total - tail])
        yield Finding(
            "applied", "fail", f"no step was applied since step {since:,}: the last {tail:,} were skipped", evidence,
            help="the weights do not change any more; see the last incident: nantrap report",
        )  # fmt: skip
        return
    outcome: Outcome = "pass" if skipped <= max(2, 0.01 * total) else "warn" if skipped <= 0.1 * total else "fail"
    words = f"{share(total - skipped, total)} steps applied"
    yield Finding("applied", outcome, words, evidence)


def incidents(window: Window) -> Iterator[Finding]:
    """What went wrong, by cause?"""
    if window.run.kind != "nantrap":
        yield from _notes(window)
        return
    phase = window.series.labels("incident.phase")
    rows = np.empty(0, dtype=np.int64) if phase is None else phase.row[window.rows[phase.row]]
    evidence: dict[str, Any] = {"incidents": len(rows)}
    marks = window.run.marks
    exceptions = [mark for mark in marks if mark.event == "exception"]
    if exceptions:
        words = f"{counted(len(exceptions), 'exception')} in a step, the last at step {exceptions[-1].step:,}"
        yield Finding("exceptions", "warn", words, {"exceptions": len(exceptions)})
    if marks and marks[-1].event == "incident_begins" and marks[-1].row >= len(window.series):
        words = f"the run ended while the failure of step {marks[-1].step:,} was being diagnosed"
        yield Finding("ended", "warn", words, {"step": marks[-1].step})
    if not len(rows):
        yield Finding("incidents", "pass", "no incident", evidence)
        return
    causes = window.series.labels("incident.cause")
    by_cause: dict[str, int] = {}
    if causes is not None:
        codes = causes.code[np.isin(causes.row, rows)]
        by_cause = {
            causes.names[code]: int(amount) for code, amount in zip(*np.unique(codes, return_counts=True), strict=True)
        }
    if len(rows) > sum(by_cause.values()):
        by_cause["no cause named"] = len(rows) - sum(by_cause.values())
    evidence["causes"] = by_cause
    ranked = sorted(by_cause.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{amount:,} × {cause}" for cause, amount in ranked[:4])
    yield Finding(
        "incidents", "warn", f"{counted(len(rows), 'incident')}: {parts}", evidence,
        help=f"nantrap explain {ranked[0][0]}" if ranked[0][0] != "no cause named" else "",
    )  # fmt: skip


def _notes(window: Window) -> Iterator[Finding]:
    rows = np.flatnonzero(window.rows)
    notes = [note for note in window.run.notes if len(rows) and rows[0] <= note.row <= rows[-1] + 1]
    if notes:
        words = f"{counted(len(notes), 'line')} about NaN or an error; line {notes[0].line:,}: {notes[0].text[:120]}"
        yield Finding("log_lines", "warn", words, {"lines": len(notes), "first": notes[0].line})


def gradient_norm(window: Window) -> Iterator[Finding]:
    """Do gradients explode or vanish?"""
    column = window.column("grad_norm")
    if column is None or not len(column):
        return
    values = column.value[np.isfinite(column.value) & window.applied(column)]
    if len(values) < 2 * LEAST:
        return
    tenth = max(5, len(values) // 10)
    # the first steps of a run have large gradients: compare with the stretch after them
    early, late = float(np.median(values[tenth : 3 * tenth])), float(np.median(values[-tenth:]))
    evidence = {"column": column.name, "early": early, "late": late, "highest": float(values.max())}
    ends = f"from {number(early)} to {number(late)}"
    if late == 0:
        yield Finding("grad_norm", "fail", "the gradient norm is 0: nothing is learned any more", evidence)
    elif early > 0 and late > 100 * early:
        yield Finding(
            "grad_norm",
            "fail",
            f"the gradient norm explodes {ends}",
            evidence,
            help="clip it (max_grad_norm), lower the learning rate",
        )
    elif early > 0 and late > 10 * early:
        yield Finding("grad_norm", "warn", f"the gradient norm grows {ends}", evidence)
    elif late < 1e-6 * early:
        yield Finding("grad_norm", "warn", f"the gradient norm vanishes {ends}", evidence)
    else:
        yield Finding("grad_norm", "pass", f"the gradient norm goes {ends}", evidence)


def learning_rate(window: Window) -> Iterator[Finding]:
    """Is there a learning rate, and does it jump?"""
    column = window.column("lr")
    if column is None or not len(column):
        return
    values = column.value
    highest = float(np.max(values))
    evidence = {"column": column.name, "first": float(values[0]), "highest": highest, "last": float(values[-1])}
    words = f"first {number(values[0])}, highest {number(highest)}, last {number(values[-1])}"
    if not np.isfinite(values).all():
        yield Finding("lr", "fail", "the learning rate is not finite", evidence)
    elif (values <= 0).all():
        yield Finding("lr", "fail", "the learning rate is 0 at every step", evidence)
    else:
        # a warm-up climbs; a jump after a fall is a learning rate that came back. Several are a schedule with restarts
        fallen = values[:-1] < 0.7 * np.maximum.accumulate(values)[:-1]
        jumps = np.flatnonzero(fallen & (values[1:] > 3 * values[:-1]))
        if len(jumps) == 1:
            place = int(jumps[0])
            jump = (
                f"jumps from {number(values[place])} to {number(values[place + 1])} at step {column.step[place + 1]:,}"
            )
            yield Finding(
                "lr", "warn", f"the learning rate {jump}", evidence,
                help="a resumed optimizer or scheduler may bring its old learning rate back",
            )  # fmt: skip
        else:
            yield Finding("lr", "pass", f"learning rate: {words}", evidence)


def loss_scale(window: Window) -> Iterator[Finding]:
    """Does the loss scale of mixed precision collapse?"""
    column = window.column("scale")
    if column is None or not len(column):
        return
    last, highest = float(column.value[-1]), float(np.nanmax(column.value))
    evidence = {"last": last, "highest": highest}
    if last < 1:
        yield Finding(
            "scale", "fail", f"the loss scale has collapsed to {number(last)} (highest: {number(highest)})", evidence,
            help="every step overflows: the cause is in the values, not in the scale",
        )  # fmt: skip
    else:
        yield Finding("scale", "pass", f"loss scale {number(last)} (highest: {number(highest)})", evidence)


def watched_values(window: Window) -> Iterator[Finding]:
    """Are watched values within the limits that the run was started with?"""
    limits = window.run.info.get("watch")
    for pattern, bounds in limits.items() if isinstance(limits, Mapping) else ():
        for bound in bounds if isinstance(bounds, list) else ():
            if isinstance(bound, Mapping):
                yield from _within(window, f"watch.{pattern}", bound)


def _within(window: Window, pattern: str, bound: Mapping[str, Any]) -> Iterator[Finding]:
    until = bound.get("until")
    for name in window.series.names:
        if fnmatch.fnmatchcase(name, pattern) and (column := window.column(name)) is not None:
            early = column.step < until if isinstance(until, int) else np.ones(len(column), dtype=bool)
            kept = Column(name, column.step[early], column.row[early], column.value[early])
            yield from limits_of(kept, low=bound.get("min"), high=bound.get("max"))


def limits_of(column: Column, *, low: float | None, high: float | None, check: str = "limits") -> Iterator[Finding]:
    """A column against limits: the first value outside and the worst."""
    if not len(column):
        return
    inside = np.isfinite(column.value)
    if high is not None:
        inside &= column.value <= high
    if low is not None:
        inside &= column.value >= low
    wanted = " and ".join(
        part
        for part in (
            f"above {number(low)}" if low is not None else "",
            f"below {number(high)}" if high is not None else "",
        )
        if part
    )
    outside = np.flatnonzero(~inside)
    evidence = {
        "column": column.name,
        "min": low,
        "max": high,
        "outside": len(outside),
        "last": float(column.value[-1]),
    }
    if not len(outside):
        extreme = column.value.max() if high is not None else column.value.min()
        words = (
            f"{column.name} stays {wanted} ({'highest' if high is not None else 'lowest'}: {number(float(extreme))})"
        )
        yield Finding(check, "pass", words, evidence)
        return
    first = int(outside[0])
    words = f"{column.name} is {number(column.value[first])} at step {column.step[first]:,}, expected {wanted}"
    yield Finding(check, "fail", f"{words} ({share(len(outside), len(column))} values outside)", evidence)


def evaluation(window: Window) -> Iterator[Finding]:
    """Does the evaluation improve?"""
    for name, column in window.evaluations().items():
        if len(column):
            yield improvement(name, column)


def improvement(name: str, column: Column) -> Finding:
    """Whether a result of evaluations gets better; losses and errors by falling, all else by rising."""
    lower = _LOWER_IS_BETTER.search(name) is not None
    values = column.value
    check, evidence = (
        "evaluation",
        {"column": name, "first": float(values[0]), "last": float(values[-1]), "lower_is_better": lower},
    )
    if not np.isfinite(values).all():
        first = int(column.step[np.flatnonzero(~np.isfinite(values))[0]])
        return Finding(check, "fail", f"{name} is not finite at step {first:,}", evidence)
    if len(values) < 2:
        return Finding(check, "unknown", f"{name}: one evaluation ({number(values[0])}), no trend yet", evidence)
    best = int(np.argmin(values) if lower else np.argmax(values))
    evidence |= {"best": float(values[best]), "best_step": int(column.step[best])}
    middle = f"best {number(values[best])} at step {column.step[best]:,}"
    words = f"{name}: first {number(values[0])}, {middle}, last {number(values[-1])}"
    if best == 0:
        return Finding(check, "warn", f"{words}: it never improves", evidence)
    gained, lost = abs(values[best] - values[0]), abs(values[best] - values[-1])
    if len(values) - 1 - best >= 3 and lost > 0.3 * gained:
        return Finding(
            check, "warn", f"{words}: worse since its best", evidence, help="stop, or resume from the best checkpoint"
        )
    return Finding(check, "pass", f"{words}: it improves", evidence)


def ranks(window: Window) -> Iterator[Finding]:
    """Are all ranks at the same step?"""
    series = window.run.series
    if len(series) < 2:
        return
    last = {rank: int(own.step[-1]) if len(own) else -1 for rank, own in series.items()}
    behind = {rank: max(last.values()) - step for rank, step in last.items()}
    slowest = max(behind, key=lambda rank: behind[rank])
    evidence = {"last_steps": {str(rank): step for rank, step in last.items()}}
    if behind[slowest] > 1024:  # a journal is written every few hundred lines
        words = f"rank {slowest} is {behind[slowest]:,} steps behind the others"
        yield Finding("ranks", "warn", words, evidence)
    else:
        yield Finding("ranks", "pass", f"{counted(len(series), 'rank')} at step {max(last.values()):,}", evidence)


CHECKS: Final[tuple[Callable[[Window], Iterator[Finding]], ...]] = (
    finite_loss, falling_loss, loss_spikes, applied_steps, incidents, gradient_norm, learning_rate, loss_scale,
    watched_values, evaluation, ranks,
)  # fmt: skip
"""In the order in which they are shown."""
