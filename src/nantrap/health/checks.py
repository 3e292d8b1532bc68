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

from nantrap.health.findings import HealthFinding, number, share
from nantrap.health.other_logs import end_of_run, left_out_steps, lost_values
from nantrap.health.trend import LEAST, spikes, trend
from nantrap.health.window import Bools, LogWindow
from nantrap.incident import BY_SLUG
from nantrap.incident.wording import counted
from nantrap.problems import Severity
from nantrap.record import Column, StepTally, apart_lines, cause_lines
from nantrap.record.columns import Floats
from nantrap.record.series import losses_of, normal_form
from nantrap.record.tally import OUTSIDE_STEPS

_DEAD = 10
"""Number of losses at the end that are not finite, or of steps that were not applied, after which a run is called
dead."""
_FROZEN = 50
_OF_POLICY = re.compile(
    r"(?:^|_)(?:advantages?|clip_?frac(?:tion)?|pg_clipfrac|clip_ratio|approx_kl|pg_loss|policy(?:_gradient)?_loss|"
    r"ep_rew_mean|episodic_return|reward_std|rewards?_mean|surrogate(?:_loss)?|(?:mean|average|avg)_(?:\w+_)?reward)(?:_|$)"
)
_OF_ADVERSARY = re.compile(r"(?:^|_)(?:loss_d|d_loss|loss_disc\w*|disc\w*_loss|l_d_real)(?:_|$)")
_LOWER_IS_BETTER = re.compile(
    r"loss|err|ppl|perplex|wer|cer|fid|mse|mae|rmse|nll|bpb|bpd|kl|distance|(?:^|[^a-z])(?:per|der|eer|lpips|epe|ade|fde|l1|l2)(?![a-z])",
    re.I,
)


def finite_loss(window: LogWindow) -> Iterator[HealthFinding]:
    """Is the loss finite, and is the run still alive?"""
    loss = _judged_loss(window)
    if loss is None or not len(loss):
        yield HealthFinding(
            "loss_finite",
            "unjudged",
            "the log has no loss",
            fix="known names are loss, train_loss, train/loss, total_loss and similar ones",
        )
        return
    bad = ~np.isfinite(loss.value)
    total, amount = len(loss), int(bad.sum())
    evidence = {"column": loss.name, "values": total, "nonfinite": amount}
    silent = _not_printed_since(window, loss)
    if silent is not None:
        words = f"the log has no loss since step {silent:,}, though it continues"
        help = "Megatron leaves out a loss that is NaN"
        yield HealthFinding("loss_finite", "error", words, data=evidence | {"dead_since": silent}, fix=help)
        return
    contained = window.run.kind == "nantrap" and not (bad & window.applied(loss)).any()
    tail = _length_of_end(bad)
    if tail >= (min(_DEAD, max(3, total // 2)) if contained else 1):
        since = int(loss.step[total - tail])
        evidence["dead_since"] = since
        words = f"dead since step {since:,}: no finite loss in the last {counted(tail, 'value')}"
        yield HealthFinding(
            "loss_finite", "error",
            words if tail > 1 else f"the last loss (step {since:,}) is {number(loss.value[-1])}", data=evidence,
            fix="resume from a checkpoint before it (nantrap audit finds a healthy one), under nantrap run",
        )  # fmt: skip
        return
    if not amount:
        yield HealthFinding("loss_finite", "ok", f"all {counted(total, 'loss', 'losses')} finite", data=evidence)
        return
    first = int(loss.step[np.flatnonzero(bad)[0]])
    outcome: Severity = "warning" if contained or amount <= 0.01 * total else "error"
    after = "; none of them reached the weights" if contained else ", and the run continued"
    yield HealthFinding(
        "loss_finite",
        outcome,
        f"{share(amount, total)} losses not finite, the first at step {first:,}{after}",
        data=evidence,
    )


def _judged_loss(window: LogWindow) -> Column | None:
    """The loss; of a log that prints several, one that ends with a value that is not finite.

    One that was never finite is left out if another one always is: some progress bars show a mean of nothing.
    """
    loss = window.column("loss")
    if loss is None or window.run.kind == "nantrap":
        return loss
    terms = [loss, *(window.series[name] for name in losses_of(window.series.names) if name != loss.name)]
    alive = [term for term in map(window.cut, terms) if np.isfinite(term.value).any()]
    return next((term for term in alive if not np.isfinite(term.value[-1])), alive[0] if alive else loss)


def _not_printed_since(window: LogWindow, loss: Column) -> int | None:
    """The step since which the log has gradient norms and no losses; `None` where it has both, or always had one."""
    norm = window.column("grad_norm")
    if norm is None or window.run.kind == "nantrap":
        return None
    after = norm.step[norm.row > loss.row[-1]]
    usual = max(1, round(len(norm) / len(loss)))
    return int(after[0]) if len(after) > 3 * usual and np.isin(loss.row, norm.row).all() else None


def _length_of_end(bad: Bools) -> int:
    """How many values at the end are bad, without a good one between them."""
    good = np.flatnonzero(~bad)
    return len(bad) - (int(good[-1]) + 1 if len(good) else 0)


def surrogate(window: LogWindow, values: Floats) -> str:
    """Why the course of the loss says nothing, in words; empty for a loss that should fall.

    The loss of a policy (PPO, GRPO) is made anew from each rollout: its gradient means something, its value does not.
    """
    sign = next((name for name in window.series.names if _OF_POLICY.search(normal_form(name))), "")
    if sign:
        return f"the loss is that of a policy ({sign}), made anew for each rollout"
    opponent = next((name for name in window.series.names if _OF_ADVERSARY.search(normal_form(name))), "")
    if opponent:
        return f"the loss is that of networks that play against each other ({opponent})"
    signs = np.sign(values[values != 0])
    if len(signs) >= LEAST and (signs[1:] != signs[:-1]).mean() > 0.1:
        return "the loss changes its sign again and again, as that of a policy does"
    return ""


def falling_loss(window: LogWindow) -> Iterator[HealthFinding]:
    """Does the loss fall, stay, rise, or rise again?"""
    loss = _judged_loss(window)
    if loss is None:
        return
    good = np.isfinite(loss.value) & window.applied(loss)
    values = loss.value[good]
    found = trend(values)
    if found is None:
        words = f"only {counted(len(values), 'finite loss', 'finite losses')}: too few for a trend (needs {LEAST})"
        yield HealthFinding("loss_falls", "unjudged", words, data={"values": len(values)})
        return
    evidence = {"first": found.first, "last": found.last, "low": found.low, "direction": found.direction}
    reason = surrogate(window, values)
    if reason:
        words = f"{reason}: from {number(found.first)} to {number(found.last)}, which is not judged"
        yield HealthFinding("loss_falls", "ok", words, data=evidence)
        return
    ends = f"from {number(found.first)} to {number(found.last)} (medians of the first and the last tenth)"
    low_step = int(loss.step[good][found.low_index])
    if np.ptp(values[-_FROZEN:]) == 0 and len(values) >= _FROZEN:
        printed = window.run.kind in ("text", "csv")  # a printed loss may have few digits
        yield HealthFinding(
            "loss_falls", "warning" if printed else "error",
            f"the loss does not change any more: {number(found.last)} in the last {_FROZEN} values", data=evidence,
            fix="do gradients reach the weights (grad_norm), and is the learning rate above 0?",
        )  # fmt: skip
    elif found.direction == "rises":
        help = "a loss that rises from the start points to the learning rate, the sign of a term, or the data"
        yield HealthFinding("loss_falls", "error", f"the loss rises {ends}", data=evidence, fix=help)
    elif found.last - found.low > max(0.3 * (found.first - found.low), found.noise, 8 * found.error):
        yield HealthFinding(
            "loss_falls", "error",
            f"the loss diverges: {number(found.low)} around step {low_step:,}, {number(found.last)} at the end",
            data=evidence,
            fix=f"resume from a checkpoint at or before step {low_step:,} with a lower learning rate",
        )  # fmt: skip
    elif found.direction == "flat":
        yield HealthFinding(
            "loss_falls", "warning", f"the loss shows no clear trend: {ends}, within its noise", data=evidence
        )
    else:
        yield HealthFinding("loss_falls", "ok", f"the loss falls {ends}", data=evidence)


def loss_spikes(window: LogWindow) -> Iterator[HealthFinding]:
    """Does the loss jump?"""
    loss = _judged_loss(window)
    if loss is None:
        return
    good = np.isfinite(loss.value) & window.applied(loss)
    values, steps = loss.value[good], loss.step[good]
    if len(values) < 2 * LEAST or surrogate(window, values):
        return
    found = spikes(values)
    evidence: dict[str, Any] = {"spikes": len(found), "values": len(values)}
    if not len(found):
        yield HealthFinding("spikes", "ok", "no spike in the loss", data=evidence)
        return
    top = found[np.argsort(values[found])[::-1][:3]]
    evidence["largest"] = [{"step": int(steps[i]), "loss": float(values[i])} for i in top]
    examples = ", ".join(f"{number(values[i])} at step {steps[i]:,}" for i in top)
    outcome: Severity = "warning" if len(found) > max(1, 0.001 * len(values)) else "ok"
    yield HealthFinding(
        "spikes", outcome, f"{counted(len(found), 'spike')} in the loss; the largest: {examples}", data=evidence
    )


def applied_steps(window: LogWindow) -> Iterator[HealthFinding]:
    """How many steps moved the weights?"""
    if not (window.run.kind == "nantrap" or window.series.says_applied) or not window.rows.any():
        return
    tally = window.tally()
    applied = window.series.applied[window.rows]
    total, skipped = tally.attempted, tally.skipped
    evidence = {
        "steps": total, "applied": tally.applied, "skipped": skipped, "given_up": tally.given_up,
        "rollbacks": tally.rollbacks, "scaler_probes": tally.scaler_probes,
        "dropped_micro_batches": tally.dropped_micro_batches,
    }  # fmt: skip
    tail = len(applied) - (int(np.flatnonzero(applied)[-1]) + 1 if applied.any() else 0)
    if tail >= _DEAD:
        since = int(window.series.step[window.rows][len(applied) - tail])
        yield HealthFinding(
            "applied", "error", f"no step was applied since step {since:,}: none of the last {tail:,}",
            data=evidence,
            fix="the weights do not change any more; see the last incident: nantrap report",
        )  # fmt: skip
        return
    outcome: Severity = "ok" if skipped <= max(2, 0.01 * total) else "warning" if skipped <= 0.1 * total else "error"
    words = f"{share(tally.applied, total)} steps applied"
    if tally.scaler_probes:
        words += f"; {tally.scaler_probes:,} left out by the GradScaler while it searched its scale"
    yield HealthFinding("applied", outcome, words, data=evidence)


def incidents(window: LogWindow) -> Iterator[HealthFinding]:
    """What went wrong, by cause?"""
    if window.run.kind != "nantrap":
        return
    tally = window.tally()
    evidence: dict[str, Any] = {"incidents": tally.incidents}
    marks = window.run.marks
    exceptions = [mark for mark in marks if mark.event == "exception"]
    if exceptions:
        words = f"{counted(len(exceptions), 'exception')} in a step, the last at step {exceptions[-1].step:,}"
        yield HealthFinding("exceptions", "warning", words, data={"exceptions": len(exceptions)})
    unfinished = _unfinished_diagnosis(window)
    if unfinished is not None:
        words = f"the run ended while the failure of step {unfinished:,} was being diagnosed"
        yield HealthFinding("ended", "warning", words, data={"step": unfinished})
    error = "" if window.run.end is None else str(window.run.end.fields.get("error", ""))
    if error:
        interrupted = error == "KeyboardInterrupt"
        words = "the run was interrupted (KeyboardInterrupt)" if interrupted else f"the run was ended by {error}"
        yield HealthFinding("ended", "warning" if interrupted else "error", words, data={"error": error})
    yield from incidents_apart(tally)
    if not tally.incidents:
        if unfinished is None:
            yield HealthFinding("incidents", "ok", "no incident", data=evidence)
        return
    evidence |= {"causes": dict(tally.causes), "guesses": dict(tally.guesses)}
    parts = ", ".join(cause_lines(tally.causes, tally.guesses)[:4])
    slug = tally.causes.most_common(1)[0][0]
    yield HealthFinding(
        "incidents", "warning", f"{counted(tally.incidents, 'incident')}: {parts}", data=evidence,
        fix=f"nantrap explain {slug}" if slug in BY_SLUG else "",
    )  # fmt: skip


def incidents_apart(tally: StepTally) -> Iterator[HealthFinding]:
    """Incidents that belong to no step: of evaluations, and of models that no optimizer trains."""
    data = {"evaluations": dict(tally.evaluations), "inferences": dict(tally.inferences)}
    for words in apart_lines(tally):
        yield HealthFinding("incidents_apart", "warning", words, data=data)


def _unfinished_diagnosis(window: LogWindow) -> int | None:
    """The step of a diagnosis after which the run wrote nothing of its result; `None` if there is none."""
    for mark in reversed(window.run.marks):
        if mark.row < len(window.series) or mark.event in OUTSIDE_STEPS:
            return None
        if mark.event == "incident_begins":
            return mark.step
    return None


def gradient_norm(window: LogWindow) -> Iterator[HealthFinding]:
    """Do gradients explode or vanish?"""
    column = window.column("grad_norm")
    if column is None or not len(column):
        return
    applied = window.applied(column)
    values = column.value[np.isfinite(column.value) & applied]
    bad = ~np.isfinite(column.value) & applied
    if bad.any():
        finding = _bad_norms(window, column, bad)
        yield finding
        if finding.severity == "error":
            return
    if len(values) < 2 * LEAST:
        return
    tenth = max(5, len(values) // 10)
    # the first steps of a run have large gradients: compare with the stretch after them
    early, late = float(np.median(values[tenth : 3 * tenth])), float(np.median(values[-tenth:]))
    evidence = {"column": column.name, "early": early, "late": late, "highest": float(values.max())}
    ends = f"from {number(early)} to {number(late)}"
    if late == 0:
        yield HealthFinding("grad_norm", "error", "the gradient norm is 0: nothing is learned any more", data=evidence)
    elif early > 0 and late > 100 * early:
        yield HealthFinding(
            "grad_norm",
            "error",
            f"the gradient norm explodes {ends}",
            data=evidence,
            fix="clip it (max_grad_norm), lower the learning rate",
        )
    elif early > 0 and late > 10 * early:
        yield HealthFinding("grad_norm", "warning", f"the gradient norm grows {ends}", data=evidence)
    elif late < 1e-6 * early:
        yield HealthFinding("grad_norm", "warning", f"the gradient norm vanishes {ends}", data=evidence)
    else:
        yield HealthFinding("grad_norm", "ok", f"the gradient norm goes {ends}", data=evidence)


def _bad_norms(window: LogWindow, column: Column, bad: Bools) -> HealthFinding:
    """Gradient norms that are NaN or Inf: a few of them are what a GradScaler needs to find its scale."""
    total, amount, tail = len(bad), int(bad.sum()), _length_of_end(bad)
    evidence = {"column": column.name, "values": total, "nonfinite": amount}
    few = amount <= max(5, 0.01 * total)
    if not tail and few:
        words = f"{share(amount, total)} gradient norms not finite; later ones are"
        return HealthFinding("grad_norm", "ok", words, data=evidence)
    if not tail:
        severity: Severity = "error" if amount > 0.1 * total else "warning"
        return HealthFinding("grad_norm", severity, f"{share(amount, total)} gradient norms not finite", data=evidence)
    first = total - tail
    evidence["dead_since"] = int(column.step[first])
    values = {number(value) for value in column.value[first:]}
    since = f"since step {column.step[first]:,} ({counted(tail, 'value')})"
    words = f"the gradient norm is {' or '.join(sorted(values))} {since}"
    loss = window.column("loss")
    if loss is not None and np.isin(column.row[first:], loss.row[loss.value == 0]).all():
        words += ", and the loss is exactly 0"
    return HealthFinding(
        "grad_norm", "error", words, data=evidence,
        fix="no update from such gradients is of use; transformers leaves NaN out of the loss that it prints "
        "(logging_nan_inf_filter), so a loss of 0 can be NaN",
    )  # fmt: skip


def learning_rate(window: LogWindow) -> Iterator[HealthFinding]:
    """Is there a learning rate, and does it jump?"""
    column = window.column("lr")
    if column is None or not len(column):
        return
    values = column.value
    highest = float(np.max(values))
    evidence = {"column": column.name, "first": float(values[0]), "highest": highest, "last": float(values[-1])}
    words = f"first {number(values[0])}, highest {number(highest)}, last {number(values[-1])}"
    if not np.isfinite(values).all():
        yield HealthFinding("lr", "error", "the learning rate is not finite", data=evidence)
    elif (values <= 0).all():
        yield HealthFinding("lr", "error", "the learning rate is 0 at every step", data=evidence)
    else:
        # a warm-up climbs; a jump after a fall is a learning rate that came back. Several are a schedule with restarts
        fallen = values[:-1] < 0.7 * np.maximum.accumulate(values)[:-1]
        jumps = np.flatnonzero(fallen & (values[1:] > 3 * values[:-1]))
        if len(jumps) == 1:
            place = int(jumps[0])
            jump = (
                f"jumps from {number(values[place])} to {number(values[place + 1])} at step {column.step[place + 1]:,}"
            )
            yield HealthFinding(
                "lr", "warning", f"the learning rate {jump}", data=evidence,
                fix="a resumed optimizer or scheduler may bring its old learning rate back",
            )  # fmt: skip
        else:
            yield HealthFinding("lr", "ok", f"learning rate: {words}", data=evidence)


def loss_scale(window: LogWindow) -> Iterator[HealthFinding]:
    """Does the loss scale of mixed precision collapse?"""
    column = window.column("scale")
    if column is None or not len(column):
        return
    last, highest = float(column.value[-1]), float(np.nanmax(column.value))
    evidence = {"last": last, "highest": highest}
    if last < 1:
        yield HealthFinding(
            "scale", "error", f"the loss scale has collapsed to {number(last)} (highest: {number(highest)})",
            data=evidence,
            fix="every step overflows: the cause is in the values, not in the scale",
        )  # fmt: skip
    else:
        yield HealthFinding("scale", "ok", f"loss scale {number(last)} (highest: {number(highest)})", data=evidence)


def watched_values(window: LogWindow) -> Iterator[HealthFinding]:
    """Are watched values within the limits that the run was started with?"""
    limits = window.run.info.get("watch")
    for pattern, bounds in limits.items() if isinstance(limits, Mapping) else ():
        for bound in bounds if isinstance(bounds, list) else ():
            if isinstance(bound, Mapping):
                yield from _within(window, f"watch.{pattern}", bound)


def _within(window: LogWindow, pattern: str, bound: Mapping[str, Any]) -> Iterator[HealthFinding]:
    until = bound.get("until")
    for name in window.series.names:
        if fnmatch.fnmatchcase(name, pattern) and (column := window.column(name)) is not None:
            early = column.step < until if isinstance(until, int) else np.ones(len(column), dtype=bool)
            kept = Column(name, column.step[early], column.row[early], column.value[early])
            yield from limits_of(kept, low=bound.get("min"), high=bound.get("max"))


def limits_of(
    column: Column, *, low: float | None, high: float | None, check: str = "limits"
) -> Iterator[HealthFinding]:
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
        lowest, highest = number(float(column.value.min())), number(float(column.value.max()))
        reached = f"lowest: {lowest}" if high is None else f"highest: {highest}"
        if high is not None and low is not None:
            reached = f"from {lowest} to {highest}"
        yield HealthFinding(check, "ok", f"{column.name} stays {wanted} ({reached})", data=evidence)
        return
    first = int(outside[0])
    words = f"{column.name} is {number(column.value[first])} at step {column.step[first]:,}, expected {wanted}"
    yield HealthFinding(check, "error", f"{words} ({share(len(outside), len(column))} values outside)", data=evidence)


def evaluation(window: LogWindow) -> Iterator[HealthFinding]:
    """Does the evaluation improve?"""
    for name, column in window.evaluations().items():
        if len(column):
            yield improvement(name, column)


def improvement(name: str, column: Column) -> HealthFinding:
    """Whether a result of evaluations gets better; losses and errors by falling, all else by rising."""
    lower = _LOWER_IS_BETTER.search(name) is not None
    values = column.value
    check, evidence = (
        "evaluation",
        {"column": name, "first": float(values[0]), "last": float(values[-1]), "lower_is_better": lower},
    )
    if not np.isfinite(values).all():
        first = int(column.step[np.flatnonzero(~np.isfinite(values))[0]])
        return HealthFinding(check, "error", f"{name} is not finite at step {first:,}", data=evidence)
    if len(values) < 2:
        return HealthFinding(
            check, "unjudged", f"{name}: one evaluation ({number(values[0])}), no trend yet", data=evidence
        )
    best = int(np.argmin(values) if lower else np.argmax(values))
    evidence |= {"best": float(values[best]), "best_step": int(column.step[best])}
    middle = f"best {number(values[best])} at step {column.step[best]:,}"
    words = f"{name}: first {number(values[0])}, {middle}, last {number(values[-1])}"
    if best == 0:
        return HealthFinding(check, "warning", f"{words}: it never improves", data=evidence)
    gained, lost = abs(values[best] - values[0]), abs(values[best] - values[-1])
    if len(values) - 1 - best >= 3 and lost > 0.3 * gained:
        return HealthFinding(
            check,
            "warning",
            f"{words}: worse since its best",
            data=evidence,
            fix="stop, or resume from the best checkpoint",
        )
    return HealthFinding(check, "ok", f"{words}: it improves", data=evidence)


def ranks(window: LogWindow) -> Iterator[HealthFinding]:
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
        yield HealthFinding("ranks", "warning", words, data=evidence)
    else:
        yield HealthFinding(
            "ranks", "ok", f"{counted(len(series), 'rank')} at step {max(last.values()):,}", data=evidence
        )


CHECKS: Final[tuple[Callable[[LogWindow], Iterator[HealthFinding]], ...]] = (
    finite_loss, falling_loss, loss_spikes, applied_steps, incidents, left_out_steps, lost_values, end_of_run,
    gradient_norm,
    learning_rate, loss_scale, watched_values, evaluation, ranks,
)  # fmt: skip
"""In the order in which they are shown."""
