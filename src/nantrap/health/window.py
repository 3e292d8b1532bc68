"""A window: the rows of a run that a check reads. A stage has its own; the whole run is one too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nantrap.record import Column, Run, Series, StepTally, tally_of

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class LogWindow:
    """Rows `rows` of the run's first rank, without what a later start of the run did again."""

    run: Run
    series: Series
    rows: Bools
    is_whole: bool = False

    def tally(self) -> StepTally:
        """How many steps the window has and what became of them."""
        return self.run.tally() if self.is_whole else tally_of(self.series, rows=self.rows)

    def column(self, name: str) -> Column | None:
        """A column within the window; `None` if the log has none of that name."""
        column = self.series.get(name)
        return None if column is None else self.cut(column)

    def evaluations(self) -> dict[str, Column]:
        """Results of evaluations within the steps of the window."""
        steps = self.series.step[self.rows]
        if not len(steps):
            return {}
        first, last = steps.min(), steps.max()
        found = {}
        for name, column in self.run.evaluations.items():
            # an evaluation after the last step of the window still judges it
            inside = (column.step >= first) & (column.step <= last + 1)
            if inside.any():
                found[name] = Column(name, column.step[inside], column.row[inside], column.value[inside])
        return found

    def applied(self, column: Column) -> Bools:
        """Which values of a column belong to steps that were applied."""
        return self.series.applied[column.row]

    def cut(self, column: Column) -> Column:
        """The part of a column that is within the window."""
        inside = self.rows[column.row]
        if inside.all():
            return column  # no copies of millions of values for the usual case
        return Column(column.name, column.step[inside], column.row[inside], column.value[inside])


def whole(run: Run) -> LogWindow:
    """The run as it counts: all rows but those that a later start went through again."""
    series = run.main
    lead = series.get("loss")
    if run.kind == "tensorboard" and lead is not None:
        # each event is a row, and every tag may count steps in its own way: only the loss's own steps can go back
        rows = np.ones(len(series), dtype=bool)
        for segment, after in zip(series.segments, series.segments[1:], strict=False):
            late = np.arange(segment.start, segment.stop)
            rows[late[series.step[late] >= after.first_step]] = False
        return LogWindow(run, series, rows)
    return LogWindow(run, series, series.current, is_whole=True)
