"""The charts on the pages: of a run, of an incident, and of a run that is watched live.

All charts of a page share one axis of steps, and the same numbers name the same causes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup, escape

from nantrap.incident.wording import counted, value, visible
from nantrap.record import Column, Envelope, envelope
from nantrap.report.charts import (
    Range,
    Scale,
    chart,
    curve,
    diamond,
    flag,
    guides,
    hatched,
    limit_line,
    note,
    numbered,
    rug,
    scale_for,
    step_labels,
    swatch,
)
from nantrap.report.journals import JournalRow
from nantrap.report.view_incident import Growth, IncidentView
from nantrap.report.view_run import Drawn, RunView

COLUMNS = 400
_LANES = 6
_DISCS = 6
_KINDS = ("l1", "l2 dash", "l3 dot", "l1 dot", "l2", "l3 dash")
_AROUND = 40
_LIVE_TITLES = {"loss": "Loss", "grad_norm": "Gradient norm", "lr": "Learning rate", "scale": "Loss scale"}
_LIVE_STEPS = 600
_MOST_LIVE_CHARTS = 12
_KEY = Markup(
    '<span class="key"><svg width="18" height="8" aria-hidden="true"><rect width="18" height="8" class="fband"/>'
    '<path class="l l1" d="M0 4H18"/></svg>min to max, median</span>'
)
_SKIP_KEY = Markup(
    '<span class="key"><svg width="4" height="9" aria-hidden="true"><path class="l lbad" d="M2 0V9"/></svg>'
    "not applied</span>"
)
_HELD_KEY = Markup(
    '<span class="key"><svg width="10" height="10" aria-hidden="true">'
    '<path d="M5 0L10 5L5 10L0 5z" class="fbg l3 thick"/></svg>held out</span>'
)


# ---- the page of a run


def run_charts(view: RunView) -> Markup:
    """Every chart of the run, from events and loss to what was watched."""
    span = Range(view.first_step, view.last_step)
    parts = [_events(view, span), _loss(view, span), _zoom(view), _terms(view, span)]
    parts += [_drawn(view, drawn, span) for drawn in view.drawn]
    return Markup("").join(part for part in parts if part)


def _about(width: float) -> str:
    return "1 or 2" if 1 < width < 2 else f"{'' if width == int(width) else 'about '}{width:,.0f}"


def legend(view: RunView) -> str:
    """How to read the charts, in words."""
    steps = view.last_step - view.first_step + 1
    number = min(COLUMNS, steps)
    if steps <= COLUMNS:
        how = f"{counted(steps, 'step')}, each drawn separately."
    else:
        how = (
            f"{counted(steps, 'step')} in {number} columns of {_about(steps / number)} steps. The band "
            "goes from the smallest to the largest value of a column and the line is its median, so a spike of one "
            "step stays visible."
        )
    return f"{how} Hatched: no finite value. Red ticks: steps that were not applied."


def _envelope(column: Column, span: Range, most: int = COLUMNS) -> Envelope:
    return envelope(column.step, column.value.astype(float), first=span.first, last=span.last, most=most)


def _important(view: RunView) -> list[int]:
    steps = [step for step, _ in view.rollbacks][:20]
    return steps + ([view.stop_step] if view.stop_step is not None else [])


def _events(view: RunView, span: Range) -> Markup:
    """One lane for each cause, one tick for each of its steps; rollbacks and the stop in a separate lane."""
    groups = view.groups[:_LANES]
    if not groups and not view.rollbacks and view.stop_step is None:
        return Markup("")
    inner, y = "", 0
    labels = ""  # plain text until the end: what comes from the run is escaped where it is added
    for group in groups:
        places = sorted({round(span.percent(step) * 10) for step in group.steps})
        inner += f'<path class="l lbad" d="{"".join(f"M{place} {y + 3}v13" for place in places)}"/>'
        inner += f'<path class="grid" d="M0 {y + 20}H1000"/>'
        labels += f'<text x="-7" y="{y + 14}" text-anchor="end"><tspan class="tbad">{group.number}</tspan> '
        labels += f'<tspan class="m">{escape(visible(group.code))}</tspan></text>'
        y += 21
    if view.rollbacks or view.stop_step is not None or view.spikes:
        labels += f'<text x="-7" y="{y + 14}" text-anchor="end">other</text>' + str(_others(view, span, y))
        y += 21
    labels += str(step_labels(span, y))
    described = "; ".join(f"{g.code} {counted(len(g.steps), 'time')}, steps {g.span}" for g in groups)
    return Markup(
        "<figure><figcaption><b>Events</b><span>one lane for each cause, one tick for each of its steps</span>"
        f'</figcaption><div class="plot"><svg width="100%" height="{y + 18}" role="img" '
        f'aria-label="Events over {counted(view.attempted, "step")}: {escape(visible(described))}.">'
        f'<svg viewBox="0 0 1000 {y}" width="100%" height="{y}" preserveAspectRatio="none">{inner}</svg>'
        f'<line class="axis" x1="0" x2="100%" y1="{y}" y2="{y}"/>{labels}</svg></div></figure>'
    )


def _others(view: RunView, span: Range, y: int) -> Markup:
    """The lane for rollbacks (with an arrow to the older step), the stop of the run, and spikes."""
    out = Markup("")
    for step, target in view.rollbacks[:12]:
        here = f"{span.percent(step):.2f}%"
        if target is not None:
            there = f"{span.percent(target):.2f}%"
            out += Markup(
                f'<line x1="{here}" x2="{there}" y1="{y + 10}" y2="{y + 10}" class="l lbad" marker-end="url(#tip)"/>'
            )
        out += Markup(f'<text x="{here}" y="{y + 15}" text-anchor="middle" class="tbad halo">↶</text>')
    if view.rollbacks:
        out += flag(view.rollbacks[0][0], span, y + 14, "rollback" if len(view.rollbacks) == 1 else "rollbacks")
    if view.stop_step is not None:
        out += flag(view.stop_step, span, y + 14, "✖ stopped", short="✖")
    for step in view.spikes[:12]:
        out += Markup(f'<text x="{span.percent(step):.2f}%" y="{y + 14}" text-anchor="middle" class="twarn">▲</text>')
    return out


def _loss(view: RunView, span: Range) -> Markup:
    """The chart of the loss: held-out results, skipped steps and the first step of each kind of incident are marked."""
    column = view.loss
    if column is None or not len(column.value):
        return Markup("")
    found = _envelope(column, span)
    held_out = view.evaluation_loss
    marks = [] if held_out is None else [float(v) for v in held_out.value if math.isfinite(v)]
    scale = scale_for([found], height=190, include=marks)
    over = guides(_important(view), span, scale.height)
    if held_out is not None:
        keep = range(len(held_out.value)) if len(held_out.value) <= 60 else np.linspace(0, len(held_out.value) - 1, 60)
        for i in (int(place) for place in keep):
            if math.isfinite(held_out.value[i]):
                over += diamond(int(held_out.step[i]), float(held_out.value[i]), span, scale)
    over += _spike_flag(column, found, span, scale)
    places = [span.percent(group.steps[0]) for group in view.groups[:_DISCS]]
    for i, group in enumerate(view.groups[:_DISCS]):  # one that would cover another stands below it
        row = sum(abs(places[i] - place) < 4 for place in places[:i])
        over += numbered(group.steps[0], span, 12 + 19 * row, str(group.number))
    caption = (_KEY if found.width > 1 else Markup("")) + (_HELD_KEY if marks else Markup(""))
    caption += (_SKIP_KEY if view.skipped_steps else Markup("")) + note(_axis_text(scale))
    return chart(
        "Loss",
        describe=_describe("Loss", column, view),
        scale=scale,
        span=span,
        inner=curve(found, scale) + rug(view.skipped_steps, span, scale.height),
        over=over,
        caption=caption,
        now=_now(column),
        ident="loss",
    )


def _spike_flag(column: Column, found: Envelope, span: Range, scale: Scale) -> Markup:
    """The value that stands out most among those around it, in words."""
    finite = np.isfinite(column.value)
    if finite.sum() < 20:
        return Markup("")
    middle = abs(float(np.median(column.value[finite])))
    high = found.high
    near = {i: abs(float(np.nanmedian(high[max(0, i - 6) : i + 7]))) for i in np.flatnonzero(high > 3 * middle)}
    if not (steep := {i: float(high[i]) / usual for i, usual in near.items() if high[i] > 3 * usual > 0}):
        return Markup("")
    largest = float(high[max(steep, key=steep.__getitem__)])
    step = int(column.step[np.argmax(column.value == largest)])
    short = f"▲ {value(largest, 3)}"
    return flag(step, span, max(34.0, scale(largest) + 4), f"{short} at step {step:,}", tone="warn", short=short)


def _zoom(view: RunView) -> Markup:
    """Every step around the first rollback, or before the stop."""
    if view.loss is None or not _important(view):
        return Markup("")
    event = _important(view)[0]
    first, last = max(view.first_step, event - _AROUND), min(view.last_step, event + _AROUND - 10)
    if last - first < 10 or view.last_step - view.first_step <= 3 * _AROUND:
        return Markup("")
    span = Range(first, last)
    inside = [step for step in view.skipped_steps if first <= step <= last]
    found = _envelope(view.loss, span, last - first + 1)
    scale = scale_for([found], height=130)
    rolled = view.rollbacks[0] if view.rollbacks and view.rollbacks[0][0] == event else None
    title = "Around the rollback" if rolled else "Before the stop"
    words = "↶ rolled back" + (f" to step {rolled[1]:,}" if rolled[1] is not None else "") if rolled else "✖ stopped"
    dots = "".join(
        f'<circle cx="{span.percent(first + i):.2f}%" cy="{scale(float(found.middle[i])):.1f}" r="1.8" class="fs1"/>'
        for i in range(len(found))
        if found.finite[i]
    )
    return chart(
        title,
        describe=f"Loss of every step from {first:,} to {last:,}; {counted(len(inside), 'step')} not applied.",
        scale=scale,
        span=span,
        inner=curve(found, scale, band=False) + rug(inside, span, scale.height),
        over=Markup(dots) + guides([event], span, scale.height) + flag(event, span, 16, words, short=words[:1]),
        caption=note(f"loss of every step from {first:,} to {last:,}, {_axis_text(scale)}"),
    )


def _terms(view: RunView, span: Range) -> Markup:
    """The chart of the named loss terms, and how often each was not finite."""
    drawn = [term for term in view.terms if np.isfinite(term.column.value).any()]
    if not drawn:
        return Markup("")
    found = [_envelope(term.column, span, 250) for term in drawn]
    scale = scale_for(found, height=104)
    inner = Markup("").join(
        curve(one, scale, kind=_KINDS[i % len(_KINDS)] + " thin", band=False) for i, one in enumerate(found)
    )
    gaps = [
        f"{t.title} {int((~np.isfinite(t.column.value)).sum()):,}"
        for t in drawn
        if (~np.isfinite(t.column.value)).any()
    ]
    keys = Markup("").join(swatch(_KINDS[i % len(_KINDS)], term.title) for i, term in enumerate(drawn))
    return chart(
        "Loss terms",
        describe="Loss terms "
        + ", ".join(f"{t.title} last {value(float(t.column.value[-1]), 3)}" for t in drawn)
        + ".",
        scale=scale,
        span=span,
        inner=inner + rug(view.skipped_steps, span, scale.height),
        over=guides(_important(view), span, scale.height),
        caption=keys + note(_axis_text(scale)),
        now="not finite: " + ", ".join(gaps) if gaps else "",
    )


def _drawn(view: RunView, drawn: Drawn, span: Range) -> Markup:
    """The chart of one more value: the gradient norm with its clipping limit, the learning rate, a watched value."""
    column = drawn.column
    if not np.isfinite(column.value).any():
        return Markup("")
    found = _envelope(column, span, COLUMNS if drawn.key == "grad_norm" else 250)
    shown = [drawn.limit[0]] if drawn.limit is not None else []
    logarithmic = True if drawn.stairs else None if drawn.key == "grad_norm" else False
    scale = scale_for([found], height=84 if drawn.key == "grad_norm" else 60, include=shown, logarithmic=logarithmic)
    over = guides(_important(view), span, scale.height)
    if drawn.limit is not None:
        over += limit_line(*drawn.limit, scale)
    if drawn.key == "grad_norm":
        over += _spike_flag(column, found, span, scale)
    now = _now(column)
    if drawn.limit is not None:
        beyond = int((column.value > drawn.limit[0]).sum())
        now = f"above {drawn.limit[1]} in {counted(beyond, 'step')}, {now}"
    return chart(
        drawn.title,
        describe=_describe(drawn.title, column, view),
        scale=scale,
        span=span,
        inner=curve(found, scale, stairs=drawn.stairs, band=not drawn.stairs)
        + rug(view.skipped_steps, span, scale.height, length=5),
        over=over,
        caption=note(_axis_text(scale)) if scale.logarithmic or scale.clipped else "",
        now=now,
    )


def _axis_text(scale: Scale) -> str:
    parts = ["log scale" if scale.logarithmic else "linear scale"]
    if scale.floor:
        parts.append("zero and less on the floor")
    if scale.clipped:
        parts.append("values far outside are cut off at the edge")
    return ", ".join(parts)


def _now(column: Column) -> str:
    good = column.value[np.isfinite(column.value)]
    return (
        f"last {value(float(column.value[-1]), 4)}, lowest {value(float(good.min()), 4)}"
        if len(good)
        else "never finite"
    )


def _describe(title: str, column: Column, view: RunView) -> str:
    """The chart in words, for readers who cannot see it."""
    good = column.value[np.isfinite(column.value)]
    if not len(good):
        return f"{title}: never finite."
    first, last, least, most = (value(float(n), 3) for n in (good[0], good[-1], good.min(), good.max()))
    return (
        f"{title} over {counted(view.attempted, 'step')}, from {first} to {last}, smallest {least}, largest {most}, "
        f"{len(column.value) - len(good):,} not finite."
    )


# ---- the page of an incident


def magnitudes_chart(view: IncidentView) -> Markup:
    """How large the suspect was over the last steps, against the limit of its dtype, with the step that failed."""
    return Markup("").join(_magnitudes(growth, view.incident.step) for growth in view.magnitudes)


def _magnitudes(growth: Growth, failed: int) -> Markup:
    """How large the suspect was, against the limit of its dtype; described for readers who cannot see it."""
    points, limit = growth.points, growth.limit
    step, number = np.array([p.step for p in points]), np.array([p.number for p in points])
    span = Range(int(step.min()), max(int(step.max()), failed))
    low = min([p.number for p in points if p.number > 0], default=1.0)
    scale = Scale(min(low, 1.0) / 2, limit * 4, 112, logarithmic=True)
    found = envelope(step, number, first=span.first, last=span.last, most=200)
    last = points[-1]
    left = f", {math.log2(limit / last.number):.1f} bits left" if 0 < last.number < math.inf else ""
    figure = chart(
        f"How large {growth.of} was",
        describe=f"The largest value of {growth.of} is {value(last.number, 3)} at step {last.step:,}; the limit of "
        f"{growth.dtype} is {value(limit, 3)}; step {failed:,} failed.",
        scale=scale,
        span=span,
        inner=curve(found, scale, band=False) + hatched(failed, span, scale),
        over=limit_line(limit, f"limit of {growth.dtype}: {value(limit, 5)}", scale, tone="bad", lifted=True),
        caption=note("log scale, hatched: the step that failed"),
        lifted=True,
        now=f"{value(last.number, 3)} at step {last.step:,}{left}",
    )
    return figure + Markup('<p class="note break">{}</p>').format(growth.sentence)


def moments_charts(view: IncidentView) -> list[Markup]:
    """Loss and gradient norm of the steps before and of the failed one, which the journal may not have yet."""
    incident, moments = view.incident, view.around.moments
    if moments and moments[-1].step < incident.step:
        numbers = {"loss": incident.loss, "grad_norm": incident.grad_norm}
        known = {name: number for name, number in numbers.items() if number is not None}
        moments = (*moments, JournalRow(incident.step, incident.action.value, known))
    if len(moments) < 3:
        return []
    step = np.array([moment.step for moment in moments])
    span = Range(int(step.min()), int(step.max()))
    skipped = [moment.step for moment in moments if moment.action in ("skip", "rollback", "stop")]
    figures = []
    for title, name in (("Loss up to the incident", "loss"), ("Gradient norm up to the incident", "grad_norm")):
        number = np.array([moment.numbers.get(name, math.nan) for moment in moments])
        good = number[np.isfinite(number)]
        if not len(good):
            continue
        found = envelope(step, number, first=span.first, last=span.last, most=400)
        scale = scale_for([found], height=84)
        figures.append(
            chart(
                title,
                describe=f"{title}, steps {span.first:,} to {span.last:,}, from {value(float(good[0]), 3)} to "
                f"{value(float(good[-1]), 3)}, {len(number) - len(good)} not finite.",
                scale=scale,
                span=span,
                inner=curve(found, scale, band=False) + rug(skipped, span, scale.height),
                caption=note(", ".join(_legend(logarithmic=scale.logarithmic, gaps=len(good) < len(number)))),
                now=f"last finite {value(float(good[-1]), 4)}",
            )
        )
    return figures


def _legend(*, logarithmic: bool, gaps: bool) -> list[str]:
    return [*(["log scale"] if logarithmic else []), *(["hatched: not finite"] if gaps else [])]


# ---- the live page of a run


def standing_charts(rows: Sequence[JournalRow]) -> Markup:
    """A chart for each number of the last steps."""
    rows = rows[-_LIVE_STEPS:]
    if not rows:
        return Markup('<p class="note">No step yet.</p>')
    names = [*(name for name in _LIVE_TITLES), *sorted({n for row in rows for n in row.numbers} - _LIVE_TITLES.keys())]
    span = Range(rows[0].step, rows[-1].step)
    skipped = [row.step for row in rows if row.action != "apply"]
    step = np.array([row.step for row in rows])
    figures: list[Markup] = []
    for name in names:
        number = np.array([row.numbers.get(name, math.nan) for row in rows])
        if not np.isfinite(number).any() or len(figures) == _MOST_LIVE_CHARTS:
            continue
        found = envelope(step, number, first=span.first, last=span.last, most=_LIVE_STEPS)
        logarithmic = False if name == "lr" else None
        scale = scale_for([found], height=150 if name == "loss" else 84, logarithmic=logarithmic)
        title = _LIVE_TITLES.get(name, name.replace("terms.", "Term ", 1).replace("watch.", "Watched: ", 1))
        last = value(float(number[-1]), 4)
        figures.append(
            chart(
                title,
                describe=f"{title} of steps {span.first:,} to {span.last:,}, last {last}.",
                scale=scale,
                span=span,
                inner=curve(found, scale, band=False) + rug(skipped, span, scale.height, length=9),
                caption=note(("log scale" if scale.logarithmic else "linear scale") + ", red ticks: not applied"),
                now=f"now {last}",
            )
        )
    return Markup("").join(figures)
