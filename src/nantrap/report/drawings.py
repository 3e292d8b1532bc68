"""The pictures on the page of an incident: the suspect's magnitude, and the steps before."""

from __future__ import annotations

import math

import numpy as np
from markupsafe import Markup

from nantrap.report.axes import Scale, scale_for
from nantrap.report.charts import Limit, Range, chart, curve, hatched, limit_line, note, rug
from nantrap.report.columns import columns
from nantrap.report.incident_rows import Growth
from nantrap.report.numbers import value
from nantrap.report.surroundings import Moment
from nantrap.report.view_incident import IncidentView


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
    found = columns(step, number, first=span.first, last=span.last, most=200)
    last = points[-1]
    left = f", {math.log2(limit / last.number):.1f} bits left" if 0 < last.number < math.inf else ""
    figure = chart(
        f"How large {growth.of} was",
        describe=f"The largest value of {growth.of} is {value(last.number, 3)} at step {last.step:,}; the limit of "
        f"{growth.dtype} is {value(limit, 3)}; step {failed:,} failed.",
        scale=scale,
        span=span,
        inner=curve(found, scale, band=False) + hatched(failed, span, scale),
        over=limit_line(Limit(limit, f"limit of {growth.dtype}: {value(limit, 5)}", "bad"), scale, lifted=True),
        caption=note("log scale, hatched: the step that failed"),
        lifted=True,
        now=f"{value(last.number, 3)} at step {last.step:,}{left}",
    )
    return figure + Markup('<p class="note break">{}</p>').format(growth.sentence)


def moments_charts(view: IncidentView) -> list[Markup]:
    """Loss and gradient norm of the steps before and of the failed one, which the journal may not have yet."""
    incident, moments = view.incident, view.moments
    if moments and moments[-1].step < incident.step:
        loss, norm = (math.nan if found is None else found for found in (incident.loss, incident.grad_norm))
        moments = (*moments, Moment(incident.step, loss, norm, math.nan, incident.action.value))
    if len(moments) < 3:
        return []
    step = np.array([moment.step for moment in moments])
    span = Range(int(step.min()), int(step.max()))
    skipped = [moment.step for moment in moments if moment.action in ("skip", "rollback", "stop")]
    figures = []
    for title, numbers in (
        ("Loss up to the incident", [moment.loss for moment in moments]),
        ("Gradient norm up to the incident", [moment.grad_norm for moment in moments]),
    ):
        number = np.array(numbers)
        good = number[np.isfinite(number)]
        if not len(good):
            continue
        found = columns(step, number, first=span.first, last=span.last, most=400)
        scale = scale_for([found], height=84)
        figures.append(
            chart(
                title,
                describe=f"{title}, steps {span.first:,} to {span.last:,}, from {value(float(good[0]), 3)} to "
                f"{value(float(good[-1]), 3)}, {len(numbers) - len(good)} not finite.",
                scale=scale,
                span=span,
                inner=curve(found, scale, band=False) + rug(skipped, span, scale.height),
                caption=note(", ".join(_legend(logarithmic=scale.logarithmic, gaps=len(good) < len(numbers)))),
                now=f"last finite {value(float(good[-1]), 4)}",
            )
        )
    return figures


def _legend(*, logarithmic: bool, gaps: bool) -> list[str]:
    return [*(["log scale"] if logarithmic else []), *(["hatched: not finite"] if gaps else [])]
