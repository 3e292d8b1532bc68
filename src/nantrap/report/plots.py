"""Curves of runs as a picture file (PNG, SVG, PDF), drawn by matplotlib, an optional extra.

One panel per column, all with the same steps, all runs in each panel. A curve of many steps is drawn as its median with
the range around it, so that a spike of one step is still seen. Values that are not finite are gaps with a red mark,
never joined; steps that were skipped are ticks at the bottom; rollbacks are triangles.
"""

from __future__ import annotations

import fnmatch
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from nantrap.errors import MissingExtraError, UsageError
from nantrap.incident.wording import visible
from nantrap.record import ACTIONS, Column, Run, envelope
from nantrap.report.charts import Scale, tick_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS: Final = ("png", "svg", "pdf")
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
_STYLES = ("-", "--", "-.", ":")
_BAD = "#c62828"
_MOST_POINTS = 3000
_MOST_PANELS = 12
_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "nantrap", "svg.fonttype": "path", "font.size": 9, "axes.grid": True, "grid.alpha": 0.25,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlotOptions:
    """How to draw.

    Attributes:
        columns: names or patterns of columns, one panel each.
        log: a logarithmic y axis, where the values allow it.
        by_epoch: epochs instead of steps on the x axis.
        side_by_side: a column of panels for each run instead of all runs in the same panels.
        rank: which rank to draw.
    """

    columns: tuple[str, ...] = ("loss",)
    log: bool = True
    by_epoch: bool = False
    side_by_side: bool = False
    rank: int | None = None


def plot_runs(runs: Sequence[Run], *, form: str, options: PlotOptions | None = None) -> bytes:
    """The picture of some runs, as the bytes of a file.

    Raises:
        UsageError: a column that no run has, or a format that is not known.
        MissingExtraError: matplotlib is not installed.
    """
    options = options or PlotOptions()
    if form not in FORMATS:
        raise UsageError(f"a picture can be {', '.join(FORMATS)}, not {form!r}")
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", extra="plot") from error
    names = _panels(runs, options)
    groups = [[run] for run in runs] if options.side_by_side and len(runs) > 1 else [list(runs)]
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name with characters that the font lacks
        size = (max(7.0, 4.2 * len(groups)) + 1.0, 1.0 + 2.4 * len(names) + (0.6 if len(names) == 1 else 0))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(len(names), len(groups), sharex="col", sharey="row", squeeze=False)
        for column, group in enumerate(groups):
            for row, name in enumerate(names):
                _panel(axes[row][column], name, group, options, first=len(groups) == 1 or column == 0)
            axes[-1][column].set_xlabel("epoch" if options.by_epoch else "step")
            axes[-1][column].xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
            if len(groups) > 1 or len(runs) == 1:
                axes[0][column].set_title(_label(group[0]), loc="left", fontsize=10)
        for row in axes:
            _plain_ticks(row)
        if len(groups) == 1 and len(runs) > 1:
            _legend(figure, axes)
        figure.supxlabel(
            "× not finite   | skipped   ▼ rolled back   ■ stopped", fontsize=7, color="#555555", x=0.99, ha="right"
        )
        out = io.BytesIO()
        metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[form]
        figure.savefig(out, format=form, dpi=150, metadata=metadata)
    return out.getvalue()


def _panels(runs: Sequence[Run], options: PlotOptions) -> list[str]:
    """The columns to draw, patterns resolved; a column that no run has is an error that names what there is."""
    names: list[str] = []
    known = list(dict.fromkeys(name for run in runs for name in (*_series(run, options).names, *run.evaluations)))
    for wanted in options.columns:
        found = [wanted] if any(_column(run, wanted, options) is not None for run in runs) else []
        found = found or [name for name in known if fnmatch.fnmatchcase(name, wanted)]
        if not found:
            where = ", ".join(visible(str(run.path)) for run in runs)
            raise UsageError(f"{where}: no column {wanted!r}; there are: {', '.join(map(visible, known)) or 'none'}")
        names += [name for name in found if name not in names]
    if len(names) > _MOST_PANELS:
        raise UsageError(f"{len(names)} columns are too many for one picture; give at most {_MOST_PANELS} with --y")
    return names


def _series(run: Run, options: PlotOptions) -> Any:
    if options.rank is None:
        return run.main
    if options.rank not in run.series:
        raise UsageError(f"{run.path}: no rank {options.rank}; there are {', '.join(map(str, run.ranks))}")
    return run.series[options.rank]


def _column(run: Run, name: str, options: PlotOptions) -> Column | None:
    """The values of a curve or an evaluation result, without steps that were rolled back; `None` if not recorded."""
    series = _series(run, options)
    column: Column | None = series.get(name)
    if column is None or not len(column):
        column = run.evaluations.get(name)
    if column is None or not len(column):
        return None
    if column.row[-1] < len(series) and run.kind != "tensorboard":
        inside = series.current[column.row] if name not in run.evaluations else np.ones(len(column), dtype=bool)
        return Column(column.name, column.step[inside], column.row[inside], column.value[inside])
    return column


def _panel(axes: Axes, name: str, runs: Sequence[Run], options: PlotOptions, *, first: bool) -> None:
    """One panel: the same curve of all runs, with marks where a run had trouble."""
    drawn = []
    for index, run in enumerate(runs):
        column = _column(run, name, options)
        if column is not None:
            x = _positions(run, column, options)
            _curve(axes, x, column, colour=_COLOURS[index % len(_COLOURS)], style=_STYLES[index // len(_COLOURS) % 4],
                   label=_label(run))  # fmt: skip
            drawn.append((run, column, x))
    values = np.concatenate([column.value[np.isfinite(column.value)] for _, column, _ in drawn] or [np.empty(0)])
    positive = len(values) > 0 and (values > 0).mean() > 0.99
    if options.log and positive:
        axes.set_yscale("log", nonpositive="mask")
    if first:
        axes.set_ylabel(_escaped(name) + ("" if positive or not options.log else "\n(linear: values ≤ 0)"))
    for index, (run, column, x) in enumerate(drawn):
        _trouble(
            axes,
            run,
            column,
            x,
            options,
            colour=_BAD if len(drawn) == 1 else _COLOURS[index % len(_COLOURS)],
            lane=index,
        )
    if not len(values):
        words, colour = ("nothing finite", _BAD) if drawn else ("not recorded", "#555555")
        axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", color=colour)


def _plain_ticks(row: Sequence[Axes]) -> None:
    """A few round numbers on the logarithmic axis that a row of panels shares, as on the page of a run: `0.5`, `1`."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes = row[0]
    if axes.get_yscale() != "log":
        return
    drawn = [panel.dataLim for panel in row if np.isfinite(panel.dataLim.minposy)]
    low, high = min(box.minposy for box in drawn), max(box.y1 for box in drawn)
    if high < 1.5 * low:  # a curve that is nearly flat says nothing about the magnitudes around it
        axes.set_ylim(low / 1.6, high * 1.6)
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(FixedLocator(Scale(low, high, 100.0, logarithmic=True).ticks(7)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    axes.yaxis.set_minor_locator(NullLocator())


def _legend(figure: Figure, axes: Any) -> None:
    """The names of the runs above the panels, where they cover no curve."""
    lines: dict[str, Any] = {}
    for panel in axes.flat:
        for line, label in zip(*panel.get_legend_handles_labels(), strict=True):
            lines.setdefault(label, line)
    wide = max((len(label) for label in lines), default=0)
    figure.legend(
        lines.values(), lines.keys(), loc="outside upper left", fontsize=8, ncols=max(1, min(4, 100 // (wide + 8)))
    )


def _positions(run: Run, column: Column, options: PlotOptions) -> Any:
    if not options.by_epoch:
        return column.step
    epoch = _series(run, options).get("epoch")
    if epoch is None or not len(epoch):
        raise UsageError(f"{run.path}: the log has no epochs; leave --x epoch out")
    return np.interp(column.step, epoch.step, epoch.value)


def _curve(axes: Axes, x: Any, column: Column, *, colour: str, style: str, label: str) -> None:
    """A curve. Long ones are drawn as the median of many steps in a band from the smallest to the largest value."""
    value = np.where(np.isfinite(column.value), column.value, np.nan)
    if len(value) <= _MOST_POINTS:
        axes.plot(x, value, style, color=colour, linewidth=1.1, label=label)
        _lone_points(axes, x, value, colour)
        return
    grid = envelope(np.arange(len(value)), value, first=0, last=len(value) - 1, most=1200)
    place = np.asarray(x, dtype=float)[np.minimum(np.ceil(grid.left).astype(int), len(value) - 1)]
    axes.fill_between(place, grid.low, grid.high, color=colour, alpha=0.25, linewidth=0)
    axes.plot(place, grid.middle, style, color=colour, linewidth=1.1, label=label)
    _lone_points(axes, place, grid.middle, colour)
    # one step far above its neighbours would be a line thinner than a pixel in the band
    spike = np.flatnonzero(grid.high > 3 * np.abs(grid.middle))
    if 0 < len(spike) <= 200:
        axes.vlines(place[spike], grid.middle[spike], grid.high[spike], color=colour, linewidth=0.9)


def _lone_points(axes: Axes, x: Any, value: Any, colour: str) -> None:
    """A finite value between gaps has no line: it gets a dot."""
    finite = np.isfinite(value)
    before = np.append(False, finite[:-1])
    after = np.append(finite[1:], False)
    lone = finite & ~before & ~after
    if lone.any():
        axes.plot(np.asarray(x)[lone], value[lone], ".", color=colour, markersize=4)


def _trouble(axes: Axes, run: Run, column: Column, x: Any, options: PlotOptions, *, colour: str, lane: int) -> None:
    """Marks where values are not finite, steps were skipped, and the run was rolled back or stopped."""
    series = _series(run, options)
    bottom = axes.get_xaxis_transform()
    bad = ~np.isfinite(column.value)
    places = np.asarray(x, dtype=float)
    if bad.any():
        starts = np.flatnonzero(bad & ~np.append(False, bad[:-1]))
        stops = np.flatnonzero(bad & ~np.append(bad[1:], False))
        width = float(places[-1] - places[0]) or 1.0
        for begin, end in list(zip(starts, stops, strict=True))[:200]:
            if places[end] - places[begin] > 0.005 * width:
                axes.axvspan(places[begin], places[end], color=_BAD, alpha=0.10, hatch="///", linewidth=0)
        axes.plot(
            places[starts], np.full(len(starts), 0.03), "x", color=colour, markersize=5, transform=bottom, clip_on=False
        )
        # the last gap that reaches the end of the curve is the one that matters
        if stops[-1] == len(bad) - 1 and len(bad) - starts[-1] >= 3:
            word = "NaN" if np.isnan(column.value[starts[-1]]) else "Inf"
            text = f"{word} from {'epoch' if options.by_epoch else 'step'} {places[starts[-1]]:,.6g}"
            high = 0.94 - 0.09 * lane
            left = places[starts[-1]] > places[0] + 0.6 * width
            axes.annotate(
                text, (places[starts[-1]], high), xycoords=bottom, color=colour, fontsize=8,
                xytext=(-4 if left else 4, 0), textcoords="offset points", ha="right" if left else "left",
            )  # fmt: skip
    action = series.action[column.row] if column.row[-1] < len(series) else np.zeros(len(column), dtype=np.uint8)
    for kind, mark, size in (("skip", "|", 7), ("rollback", "v", 6), ("stop", "s", 6)):
        rows = np.flatnonzero((action == ACTIONS.index(kind)) & (~bad if kind == "skip" else True))
        if len(rows):
            axes.plot(
                places[rows],
                np.full(len(rows), 0.03),
                mark,
                color=colour,
                markersize=size,
                transform=bottom,
                clip_on=False,
            )


def _label(run: Run) -> str:
    name = run.name if run.kind in ("nantrap", "tensorboard") else f"{run.path.resolve().parent.name}/{run.path.name}"
    return _escaped(name if len(name) <= 48 else "…" + name[-47:])


def _escaped(text: str) -> str:
    """The text unchanged: `$` would begin a formula, and a leading underscore hides a label from the legend."""
    shown = visible(text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown
