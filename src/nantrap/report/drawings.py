"""The pictures on the page of an incident: the suspect's magnitude, and the steps before."""

from __future__ import annotations

import math

import numpy as np
from markupsafe import Markup

from nantrap.report.axes import Scale, scale_for
from nantrap.report.charts import Limit, Range, chart, curve, limit_line, note, rug
from nantrap.report.columns import columns
from nantrap.report.numbers import value
from nantrap.report.view_incident import IncidentView


def magnitudes_chart(view: IncidentView) -> Markup:
    """The largest value of the guilty module over the last sampled steps, against the limit of its dtype."""
    points = view.magnitudes
    if not points:
        return Markup("")
    limit = view.limit or ("float32", 3.4028234663852886e38)
    step, number = np.array([p.step for p in points]), np.array([p.number for p in points])
    span = Range(int(step.min()), int(step.max()))
    low = min([float(n) for n in number if n > 0], default=1.0)
    scale = Scale(min(low, 1.0) / 2, limit[1] * 4, 112, logarithmic=True)
    found = columns(step, number, first=span.first, last=span.last, most=200)
    last = points[-1]
    left = math.log2(limit[1] / last.number) if last.number > 0 else math.inf
    return chart(
        f"Largest value of {view.incident.module or 'the module'} over the last steps",
        describe=f"The largest value is {value(last.number, 3)} at step {last.step:,}; the limit of {limit[0]} is "
        f"{value(limit[1], 3)}.",
        scale=scale,
        span=span,
        inner=curve(found, scale, band=False),
        over=limit_line(Limit(limit[1], f"limit of {limit[0]}: {value(limit[1], 5)}", "bad"), scale),
        caption=note("log scale"),
        now=f"{value(last.number, 3)} at step {last.step:,}, {left:.1f} bits left",
    )


def moments_chart(view: IncidentView) -> Markup:
    """Loss and gradient norm of the steps before."""
    moments = view.moments
    if len(moments) < 2:
        return Markup("")
    step = np.array([moment.step for moment in moments])
    span = Range(int(step.min()), int(step.max()))
    skipped = [moment.step for moment in moments if moment.action in ("skip", "rollback", "stop")]
    figures = []
    for title, numbers in (
        ("Loss before the incident", [moment.loss for moment in moments]),
        ("Gradient norm before the incident", [moment.grad_norm for moment in moments]),
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
                caption=note(("log scale, " if scale.logarithmic else "") + "hatched: not finite"),
                now=f"last finite {value(float(good[-1]), 4)}",
            )
        )
    return Markup("").join(figures)
