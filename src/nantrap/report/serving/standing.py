"""The charts of the live page as they are when it is loaded: what a visitor without JavaScript sees."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from nantrap.report.axes import scale_for
from nantrap.report.charts import Range, chart, curve, note, rug
from nantrap.report.columns import columns
from nantrap.report.numbers import value
from nantrap.report.serving.journals import Row

_TITLES = {"loss": "Loss", "grad_norm": "Gradient norm", "lr": "Learning rate", "scale": "Loss scale"}
_SHOWN = 600
_MOST = 12


def standing_charts(rows: Sequence[Row]) -> Markup:
    """A chart for each number of the last steps."""
    rows = rows[-_SHOWN:]
    if not rows:
        return Markup('<p class="note">No step yet.</p>')
    names = [*(name for name in _TITLES), *sorted({n for row in rows for n in row.numbers} - _TITLES.keys())]
    span = Range(rows[0].step, rows[-1].step)
    skipped = [row.step for row in rows if row.action != "apply"]
    step = np.array([row.step for row in rows])
    figures: list[Markup] = []
    for name in names:
        number = np.array([row.numbers.get(name, math.nan) for row in rows])
        if not np.isfinite(number).any() or len(figures) == _MOST:
            continue
        found = columns(step, number, first=span.first, last=span.last, most=_SHOWN)
        logarithmic = False if name == "lr" else None
        scale = scale_for([found], height=150 if name == "loss" else 84, logarithmic=logarithmic)
        title = _TITLES.get(name, name.replace("terms.", "Term ", 1).replace("watch.", "Watched: ", 1))
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
