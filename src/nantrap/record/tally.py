"""How many steps a run made, and what became of them: the one definition, for all that counts.

A step is a line of the journal: an update that was asked for (`optimizer.step()`, `scaler.step(optimizer)`,
`guard.step()`), or one that a script gave up itself. Where gradients are accumulated, a micro-batch that was left out
is no step; it is counted in the step to which it belongs. Each step is in exactly one of three groups:

    applied           it moved the weights
    skipped           it was refused: by the guard (it skipped, rolled back or stopped), or by the script itself
    scaler_probes     a GradScaler left it out while it searched its scale

What a later start of the run did again counts once, as it was done the last time.
The recorder of a run counts while it writes; `tally_of` counts what a journal holds. Both give the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nantrap.incident.wording import counted
from nantrap.record.columns import Labels
from nantrap.record.series import ACTIONS, Series

NO_CAUSE = "undiagnosed"
OUTSIDE_STEPS = ("exception", "incident")
"""The kinds of lines that hold an incident and are no steps: it ended with an exception, or no step came after it."""


@dataclass(slots=True)
class StepTally:
    """The steps of a run, in numbers.

    Attributes:
        attempted: all of them.
        applied: those that moved the weights.
        scaler_probes: those that a GradScaler left out while it searched its scale.
        given_up: of those that were skipped, the ones that the script itself did not make.
        rollbacks: of those that were skipped, the ones after which an older state was restored.
        stops: of those that were skipped, the ones with which the guard ended the run.
        dropped_micro_batches: micro-batches that were left out of their steps.
        incidents: how many there were; one step can have several.
        causes: how often each cause was named first.
        guesses: how often each of these was not proven.
        evaluations: incidents of evaluations, which belong to no step, by cause.
        inferences: the same of models that no optimizer trains.
    """

    attempted: int = 0
    applied: int = 0
    scaler_probes: int = 0
    given_up: int = 0
    rollbacks: int = 0
    stops: int = 0
    dropped_micro_batches: int = 0
    incidents: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    guesses: Counter[str] = field(default_factory=Counter)
    evaluations: Counter[str] = field(default_factory=Counter)
    inferences: Counter[str] = field(default_factory=Counter)

    @property
    def skipped(self) -> int:
        """Steps that were refused, by the guard or by the script itself."""
        return self.attempted - self.applied - self.scaler_probes

    def note(self, short: Mapping[str, Any]) -> None:
        """Count an incident as the journal has it: `cause`, and `guess` if the cause is not proven.

        One of an evaluation or an inference is counted apart, by its cause.
        """
        cause = str(short.get("cause") or NO_CAUSE)
        during = short.get("during")
        if during is not None:
            apart = self.evaluations if during == "evaluation" else self.inferences
            apart[f"{cause} (a guess)" if short.get("guess") else cause] += int(short.get("times") or 1)
            return
        self.incidents += 1
        if cause == NO_CAUSE and short.get("same_as") is not None:
            cause = after_step(int(short["same_as"]))
        self.causes[cause] += 1
        if short.get("guess"):
            self.guesses[cause] += 1

    def add(self, other: StepTally) -> None:
        """Add the numbers of another tally, such as that of another optimizer or of a later part of the journal."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _COUNTERS:
            getattr(self, name).update(getattr(other, name))


_COUNTERS = ("causes", "guesses", "evaluations", "inferences")
_NUMBERS = tuple(name for name in StepTally.__slots__ if name not in _COUNTERS)


def after_step(step: int) -> str:
    """What stands in the place of a cause if an incident follows from that of an earlier step."""
    return f"after step {step:,}"


class CountsApart(Protocol):
    """Whatever counts the incidents that belong to no step, by cause."""

    @property
    def evaluations(self) -> Mapping[str, int]:
        """The causes of incidents in evaluations."""

    @property
    def inferences(self) -> Mapping[str, int]:
        """The causes of incidents of models that no optimizer trains."""


def apart_lines(counts: CountsApart) -> list[str]:
    """The incidents that belong to no step: `3 incidents in evaluations: 3 × log_of_zero`."""
    found = []
    for causes, where in ((counts.evaluations, "evaluations"), (counts.inferences, "inference")):
        if causes:
            number = sum(causes.values())
            found.append(f"{counted(number, 'incident')} in {where}: {', '.join(cause_lines(causes, {}))}")
    return found


def cause_lines(causes: Mapping[str, int], guesses: Mapping[str, int]) -> list[str]:
    """`3 × softmax_fully_masked_row`, `188 × bad_input_data (a guess)`: most frequent first.

    Incidents that look like a proven one are not tried again, so that of many of a cause one may be proven.
    """
    found = []
    for cause, number in sorted(causes.items(), key=lambda item: -item[1]):
        doubtful = guesses.get(cause, 0)
        some = f" (proven for {number - doubtful:,} of them)"
        note = "" if not doubtful else " (a guess)" if doubtful >= number else some
        found.append(f"{number:,} × {cause}{note}")
    return found


def tally_of(
    series: Series, fields: Iterable[Mapping[str, Any]] = (), *, rows: NDArray[np.bool_] | None = None
) -> StepTally:
    """Count the steps of a journal.

    Args:
        series: its steps.
        fields: its lines that are no steps; those with an incident count as one.
        rows: count only these rows.
    """
    here = np.ones(len(series), dtype=bool) if rows is None else rows
    action = series.action
    skipped = here & (action == ACTIONS.index("skip"))
    tally = StepTally(
        attempted=int(here.sum()),
        applied=int((here & series.applied).sum()),
        scaler_probes=int((here & ~series.applied & ~series.refused).sum()),
        given_up=int((skipped & series.done_by("script")).sum()),
        rollbacks=int((here & (action == ACTIONS.index("rollback"))).sum()),
        stops=int((here & (action == ACTIONS.index("stop"))).sum()),
    )
    dropped = series.get("dropped")
    if dropped is not None:
        tally.dropped_micro_batches = int(dropped.value[here[dropped.row]].sum())
    _count_incidents(tally, series, here)
    for line in fields:
        if line.get("kind") in OUTSIDE_STEPS:
            tally.dropped_micro_batches += int(line.get("dropped") or 0)
            short = line.get("incident")
            tally.note(short if isinstance(short, Mapping) else {})
    return tally


def _count_incidents(tally: StepTally, series: Series, here: NDArray[np.bool_]) -> None:
    """Count the incidents of these rows: the first of each step, and what else the line says that there were."""
    phase = series.labels("incident.phase")
    if phase is None:
        return
    rows = phase.row[here[phase.row]]
    cause = np.full(len(series), NO_CAUSE, dtype=object)
    _fill(cause, series.labels("incident.cause"))
    after = series.get("incident.same_as")
    if after is not None:
        for row, step in zip(after.row.tolist(), after.value.tolist(), strict=True):
            cause[row] = after_step(int(step)) if cause[row] == NO_CAUSE else cause[row]
    guess = np.zeros(len(series), dtype=bool)
    column = series.get("incident.guess")
    if column is not None:
        guess[column.row] = column.value > 0
    tally.incidents += len(rows)
    tally.causes.update(cause[rows].tolist())
    tally.guesses.update(cause[rows[guess[rows]]].tolist())
    for kind, counter in (("also", tally.causes), ("also_guessed", tally.guesses)):
        for name in series.beneath(f"incident.{kind}."):
            more = series[name]
            number = int(more.value[here[more.row]].sum())
            counter[name.removeprefix(f"incident.{kind}.")] += number
            tally.incidents += number if counter is tally.causes else 0


def _fill(target: NDArray[np.object_], labels: Labels | None) -> None:
    if labels is not None:
        target[labels.row] = np.array(labels.names, dtype=object)[labels.code]
