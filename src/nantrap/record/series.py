"""The steps of one rank as columns, with the names people use for the same value."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nantrap.record.columns import Column, Floats, Ints, Labels, Table

Bools = NDArray[np.bool_]

ACTIONS: Final = ("apply", "skip", "rollback", "stop", "other")
"""What `Series.action` counts: the index of the action in this list."""

NAMES: Final = {
    "loss": "loss train_loss training_loss total_loss loss_total train_total_loss train_loss_step loss_step loss_train "
    "lm_loss train_loss_epoch loss_epoch loss_avg avg_loss mean_loss batch_loss running_loss reduced_train_loss xent",
    "lr": "lr learning_rate train_lr train_learning_rate lr_0 lr_group_0 group_0_lr lr_pg0 lr_adamw lr_adam lr_sgd",
    "grad_norm": "grad_norm gradient_norm gradnorm gnorm norm total_norm train_grad_norm global_grad_norm "
    "grad_norm_total total_grad_norm grad_2_0_norm_total grad",
    "scale": "scale loss_scale grad_scale amp_scale scaler_scale scaler",
    "epoch": "epoch ep epochs train_epoch current_epoch epoch_num",
    "step": "step global_step trainer_global_step iteration iter train_step train_global_step num_updates _step "
    "steps iters it",
    "skipped": "skipped skipped_steps skipped_iterations number_of_skipped_iterations num_skipped skipped_updates "
    "inf_nan_skip_batches",
    "nan_steps": "number_of_nan_iterations nan_iterations nan_steps",
    "ms": "ms step_ms dt_ms time_ms elapsed_time_per_iteration_ms elapsed_time_per_iteration",
}
"""The names under which other tools write the values that nantrap knows, the likeliest first, in normal form."""

_EVALUATION = re.compile(
    r"(?=.*(?:^|_)(?:eval|evaluation|val|valid|validation|test|dev)(?:_|$))"
    r"(?!.*(?:runtime|per_second|(?:^|_)(?:time|steps?|samples|epoch|batch_size|jit_compilation_time)$))"
)
_LOSS = re.compile(r"loss(?:_|es|$)(?!.*scale)|^loss(?!.*scale)|^l_(?:[dg]_)?(?:total|pix|percep|style|gan)(?:_|$)")
_BEST = re.compile(r"(?:^|_)best(?:_|$)")
"""The best value so far is none of a step or of an evaluation, and Inf before the first one."""
_SIDE_TERM = re.compile(r"(?:^|_)(?:kl|entropy|ent|aux|reg|l2|z|balance|commit(?:ment)?)(?:_|$)")
_LARGEST = 2.0**53  # the last whole number that a float64 distinguishes from the next
_APART = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class RunSegment:
    """Rows `start` to `stop` (exclusive) of one start of a run; a run directory used again has several."""

    start: int
    stop: int
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True)
class NotedStep:
    """A step that was not applied, or had an incident, as the journal has it. `guess`: its cause is not proven."""

    step: int
    row: int
    action: str
    cause: str | None = None
    phase: str | None = None
    module: str | None = None
    op: str | None = None
    restored_step: int | None = None
    guess: bool = False


def normal_form(name: str) -> str:
    """`Train/Loss` and `train_loss` are one name."""
    return _APART.sub("_", name.lower()).strip("_")


def is_evaluation(name: str) -> bool:
    """Whether a column of a log holds a result of an evaluation: `eval_loss`, `val/acc`, `Loss/test`."""
    form = normal_form(name)
    return _EVALUATION.match(form) is not None and not _BEST.search(form)


def not_repeated(step: Ints) -> Bools:
    """Where steps were repeated later (a run that was started again): True for the last pass only."""
    if len(step) < 2:
        return np.ones(len(step), dtype=bool)
    begin = passes(step)
    # the least step of the passes after each one: a step at or above it was done again
    later = np.append(np.minimum.accumulate(step[begin][::-1])[::-1][1:], np.iinfo(np.int64).max)
    again: Bools = step < np.repeat(later, np.diff(np.append(begin, len(step))))
    return again


def _over_epochs(step: Ints, epoch: Floats) -> Ints:
    """Steps that are counted anew in each epoch, as one count; others as they are."""
    ends = np.flatnonzero((np.diff(step) < 0) & (np.diff(epoch) == 1))
    turns = np.flatnonzero(np.diff(epoch) == 1)
    if not len(ends) or len(ends) != len(turns) or not np.isfinite(epoch).all():
        return step
    length = int(step[ends].max()) + (int(step.min()) == 0)
    whole: Ints = step + ((epoch - epoch.min()).astype(np.int64) * length)
    return whole


def passes(step: Ints) -> Ints:
    """Where a run was started again: the indices at which the step goes back, the first one included.

    One or two steps that go back, after which the count continues where it was, are not a new start: another progress
    bar in a text log, or lines of several processes out of order.
    """
    back = np.flatnonzero(np.diff(step) < 0) + 1
    highest = np.maximum.accumulate(step)[back - 1]
    goes_on = np.zeros(len(back), dtype=bool)
    for distance in (1, 2):
        after = np.minimum(back + distance, len(step) - 1)
        goes_on |= (step[after] > highest) & (step[after] - step[after - 1] > 1)
    return np.append(0, back[~goes_on])


class Series:
    """The steps of one rank (or of a foreign log) as columns. A view of a table that may grow; holds no values itself.

    Example:
        >>> table = Table()
        >>> table.extend([{"step": 0, "loss": 2.5, "action": "apply"}, {"step": 1, "loss": "nan", "action": "skip"}])
        >>> series = Series(table, rank=0)
        >>> series["loss"].value.tolist(), series.applied.tolist()
        ([2.5, nan], [True, False])
    """

    def __init__(self, table: Table, *, rank: int = 0) -> None:
        self.rank = rank
        self._table = table
        self._steps: tuple[int, Ints] = (0, np.empty(0, dtype=np.int64))
        self._actions: tuple[int, NDArray[np.uint8]] = (0, np.empty(0, dtype=np.uint8))

    def __len__(self) -> int:
        return self._table.rows

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of numbers, in the order in which they appeared; without the step and what incidents say."""
        step = self._name_of("step")
        return tuple(name for name in self._table.numeric if name != step and not name.startswith("incident."))

    @property
    def step(self) -> Ints:
        """The step of each row. A log without steps counts its rows; a row without one has that of the row before."""
        rows = self._table.rows
        if self._steps[0] == rows:
            return self._steps[1]
        name = self._name_of("step")
        if name is None:
            step = np.arange(rows, dtype=np.int64)
        else:
            where, values = self._table.numbers(name)
            whole = np.nan_to_num(np.clip(values, -_LARGEST, _LARGEST)).astype(np.int64)
            if len(where) == rows:
                step = whole
            else:
                known = np.searchsorted(where, np.arange(rows), side="right") - 1
                step = np.where(known >= 0, whole[np.maximum(known, 0)], 0)
        epoch = self._name_of("epoch")
        if name is not None and epoch is not None and (np.diff(step) < 0).any():
            where, values = self._table.numbers(epoch)
            step[where] = _over_epochs(step[where], values)
        step.flags.writeable = False
        self._steps = (rows, step)
        return step

    def get(self, name: str) -> Column | None:
        """A column by its name in the log, or by nantrap's name for it (`loss`, `lr`, `grad_norm`, `scale`)."""
        found = name if name in self._table.numeric else self._name_of(name)
        if found is None:
            return None
        row, value = self._table.numbers(found)
        step = self.step if len(row) == len(self) else self.step[row]
        return Column(found, step, row, value)

    def beneath(self, prefix: str) -> tuple[str, ...]:
        """The columns of numbers whose names begin so, what incidents say included."""
        return tuple(name for name in self._table.numeric if name.startswith(prefix))

    def __getitem__(self, name: str) -> Column:
        column = self.get(name)
        if column is None:
            raise KeyError(name)
        return column

    def labels(self, name: str) -> Labels | None:
        """A column of text: `action`, `incident.cause`, `incident.phase`, ..."""
        if name not in self._table.textual:
            return None
        row, code, names = self._table.texts(name)
        return Labels(name, self.step[row], row, code.astype(np.int64), names)

    @property
    def action(self) -> NDArray[np.uint8]:
        """What was done at each row, as an index into `ACTIONS`. A log that does not say it applied every step."""
        rows = len(self)
        if self._actions[0] == rows:
            return self._actions[1]
        action = np.zeros(rows, dtype=np.uint8)
        labels = self.labels("action")
        if labels is not None:
            other = ACTIONS.index("other")
            meaning = [ACTIONS.index(name) if name in ACTIONS else other for name in labels.names]
            action[labels.row] = np.array(meaning, dtype=np.uint8)[labels.code]
        elif self.says_applied:
            own = self["applied"]
            action[own.row[own.value == 0]] = ACTIONS.index("skip")
        action.flags.writeable = False
        self._actions = (rows, action)
        return action

    @property
    def says_applied(self) -> bool:
        """Whether a log that nantrap did not write says of its steps whether they were applied."""
        own = self.get("applied")
        return own is not None and bool(((own.value == 0) | (own.value == 1)).all())

    @property
    def applied(self) -> Bools:
        """Whether each row's step was applied to the weights."""
        applied: Bools = self.action == 0
        return applied

    @property
    def refused(self) -> Bools:
        """Whether each row's step was refused, by the guard or by the script; not one that a GradScaler left out."""
        refused: Bools = (self.action > 0) & (self.action < ACTIONS.index("other")) & ~self.done_by("scaler")
        return refused

    def done_by(self, who: str) -> Bools:
        """Whether each row says that `guard`, `script` or `scaler` decided its step."""
        found: Bools = np.zeros(len(self), dtype=bool)
        by = self.labels("by")
        if by is not None and who in by.names:
            found[by.row[by.code == by.names.index(who)]] = True
        return found

    @property
    def segments(self) -> tuple[RunSegment, ...]:
        """The starts of the run: a new one begins where the step goes back."""
        lead = self.get("loss")
        row, step = (np.arange(len(self)), self.step) if lead is None else (lead.row, lead.step)
        if not len(row):
            return ()
        begin = passes(step)
        end = np.append(begin[1:], len(step))
        stops = np.append(row[begin[1:]], len(self))
        starts = np.append(0, row[begin[1:]])
        return tuple(
            RunSegment(int(start), int(stop), int(step[first]), int(step[last - 1]))
            for start, stop, first, last in zip(starts, stops, begin, end, strict=True)
        )

    @property
    def current(self) -> Bools:
        """False for rows whose steps a later start of the run repeated."""
        return not_repeated(self.step)

    def events(self, *, limit: int = 1000) -> list[NotedStep]:
        """The steps that were refused or had an incident: the first half and the last half of `limit`.

        A step with several incidents is there once for each.
        """
        phase = self.labels("incident.phase")
        rows = np.flatnonzero(self.refused)
        if phase is not None:
            rows = np.union1d(rows, phase.row)
        if len(rows) > limit:
            rows = np.concatenate([rows[: limit - limit // 2], rows[len(rows) - limit // 2 :]])
        told = {field: self._at(f"incident.{field}", rows) for field in ("cause", "phase", "module", "op")}
        action, step = self.action, self.step
        column = self.get("incident.restored_step")
        back = {} if column is None else dict(zip(column.row.tolist(), column.value.tolist(), strict=True))
        guessed = self._rows_of("incident.guess")
        found = [
            NotedStep(
                int(step[row]),
                int(row),
                ACTIONS[action[row]],
                **{field: told[field].get(int(row)) for field in told},
                restored_step=int(back[int(row)]) if math.isfinite(back.get(int(row), math.nan)) else None,
                guess=int(row) in guessed,
            )
            for row in rows
        ]
        return sorted([*found, *self._further(found)], key=lambda event: event.row)

    def _further(self, found: Sequence[NotedStep]) -> Iterator[NotedStep]:
        """The further incidents of these steps, of which the journal has the causes."""
        first = {event.row: event for event in found}
        for name in self.beneath("incident.also."):
            cause: str | None = name.removeprefix("incident.also.")
            column, guessed = self[name], self._rows_of(f"incident.also_guessed.{cause}")
            for row, number in zip(column.row.tolist(), column.value.tolist(), strict=True):
                event = first.get(row)
                if event is not None:
                    same = event.cause == cause
                    other = NotedStep(event.step, row, event.action, cause, guess=row in guessed)
                    yield from [event if same else other] * int(number)

    def _rows_of(self, name: str) -> set[int]:
        """The rows in which a number is above zero."""
        column = self.get(name)
        return set() if column is None else set(column.row[column.value > 0].tolist())

    def _at(self, name: str, rows: Ints) -> dict[int, str]:
        labels = self.labels(name)
        if labels is None:
            return {}
        here = np.isin(labels.row, rows)
        return {int(row): labels.names[code] for row, code in zip(labels.row[here], labels.code[here], strict=True)}

    def _name_of(self, wanted: str) -> str | None:
        """The column of the log that holds the value nantrap calls `wanted`."""
        return find_name(wanted, self._table.numeric)


def find_name(wanted: str, names: tuple[str, ...]) -> str | None:
    """Which of a log's names means the value that nantrap calls `wanted`; `None` if none does."""
    if wanted in names:
        return wanted
    by_form: dict[str, str] = {}
    for name in names:
        by_form.setdefault(normal_form(name), name)
    forms = [form.strip("_") for form in (NAMES[wanted].split() if wanted in NAMES else [normal_form(wanted)])]
    for form in forms:
        if form in by_form:
            return by_form[form]
    if wanted in ("grad_norm", "lr"):  # `actor/grad_norm`, `optim/total_grad_norm`
        ends = {normal_form(name.rpartition("/")[2]): name for name in reversed(names) if not is_evaluation(name)}
        return next((ends[form] for form in forms if form in ends), None)
    if wanted == "loss":  # a part of a loss is better than nothing
        return next(iter(losses_of(names)), None)
    return None


def losses_of(names: Iterable[str]) -> list[str]:
    """The names of losses and of their terms, without those of evaluations; what only regularizes comes last."""
    forms = {name: normal_form(name) for name in names}
    found = [name for name, form in forms.items() if _LOSS.search(form) and not _BEST.search(form)]
    found = [name for name in found if not is_evaluation(name)]
    return sorted(found, key=lambda name: _SIDE_TERM.search(forms[name]) is not None)
