"""Trials: the failed step again with exactly one thing changed. Each leaves everything as it found it, bit for bit.

A trial says something only if its *control* holds: the same step, unchanged, in the same harness, fails in the same way
(`control`). There is one control for each harness: the step, the update, and the steps run again from an older state.
Where a control does not hold, its trials are not run; each notes it, and none of them is finite or refuted.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nantrap.causes.changes import LOG_SPACE, WIDE, LogSpace, SinglePrecision, WideLines
from nantrap.causes.earlier_steps import (
    RateOf,
    beside,
    drift,
    drive,
    driven,
    moved,
    older_state,
    older_weights,
    own_rate,
    with_earlier_inputs,
)
from nantrap.causes.facts import listed
from nantrap.causes.harness import (
    Rerun,
    control_trial,
    loss_after,
    run_step,
    update_in_float32,
    update_is_finite,
    update_rewound,
)
from nantrap.causes.patch import diff_for
from nantrap.causes.references import plain_forms
from nantrap.causes.replacement import Replaced, Replacement, is_of_family
from nantrap.finite import any_nonfinite
from nantrap.incident import Source, Trial
from nantrap.locate.batch import with_tensor
from nantrap.locate.budget import Budget
from nantrap.locate.failure import Part
from nantrap.locate.replay.fresh_memory import filled_with_nan, filled_with_zeros
from nantrap.locate.replay.program import cannot_rewind
from nantrap.locate.replay.replay import fails_alike, loss_with, replay_step
from nantrap.locate.replay.samples import fails
from nantrap.locate.source import Place
from nantrap.locate.wrapping import layers_of
from nantrap.thresholds import has_grown

if TYPE_CHECKING:
    from nantrap.causes.case import Case
    from nantrap.locate.trace import Op

_MOST_LINES = 4
"""Lines at which the same call is replaced: each costs one more run of the step."""
_DIVERGED = 2.0
"""How many times larger the loss of an earlier batch must be now. With the same batch and the same random numbers, a
loss that doubled is no noise."""


def _in_lines(lines: Iterable[int]) -> str:
    """`in line 4`, `in lines 4 and 9`."""
    known = list(dict.fromkeys(lines))
    return f"in line{'s' * (len(known) > 1)} {' and '.join(map(str, known))}" if known else ""


class Laboratory:
    """Runs trials on one case, each at most once, within a budget. Holds their results and those of the controls."""

    def __init__(self, case: Case, *, budget: Budget | None = None, most: int = 16) -> None:
        """Nothing is run yet. `budget` and `most` bound all trials together; without a budget none is run."""
        self._case = case
        self._budget = budget
        self._not_tried: dict[str, list[str]] = {}
        self._most = most
        self._done: dict[str, Trial] = {}
        self._controls: dict[str, tuple[str, Trial | None]] = {}
        self._drift: float | None = None
        self._rewritten: dict[str, bool] = {}
        self._left_out: dict[str, bool] = {}
        self._changed: dict[str, tuple[Replaced, ...]] = {}
        self.notes: list[str] = []
        self.varied = False
        """Where batches of earlier steps are not kept, the inputs that the model had in them stand in as well."""
        self.wants_others = False
        """A trial was left out that all ranks together could run."""

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials, in the order in which they were run."""
        return tuple(self._done.values())

    @property
    def controls(self) -> tuple[Trial, ...]:
        """The unchanged re-runs on which the trials rest, one for each harness that was used."""
        return tuple(control for _, control in self._controls.values() if control is not None)

    def run(self, name: str, change: str, experiment: Callable[[], Rerun], *, harness: str) -> Trial:
        """Run one trial, after its control. What the experiment raises is noted.

        Args:
            name: of the trial; the same name is run once.
            change: what is changed, in words.
            experiment: runs the step and returns what it gave.
            harness: `step`, `update`, `steps` (run again from an older state), or `none` for a control itself.
        """
        if name in self._done:
            return self._done[name]
        result: Rerun | None = None
        note = ""
        started = time.monotonic()
        if (reason := self._over_budget(harness)) is not None:
            note = f"not run: {reason}"
            if self._budget is not None:
                self._not_tried.setdefault(reason, []).append(change)
        else:
            try:
                reason = self.control(harness)
                started = time.monotonic()  # the control has its own time
                if reason:
                    note = f"not run: {reason}"
                else:
                    result = experiment()
            except Exception as error:
                lines = str(error).splitlines()
                note = f"{type(error).__name__}: {lines[0] if lines else ''}"
        trial = Trial(
            number=len(self._done) + 1,
            name=name,
            change=result.change if result is not None and result.change else change,
            finite=None if result is None else result.finite,
            loss=None if result is None else result.loss,
            note=note,
            milliseconds=round((time.monotonic() - started) * 1e3, 1),
            harness=harness,
        )
        self._done[name] = trial
        return trial

    def _over_budget(self, harness: str) -> str | None:
        """Why the budget does not allow a trial in this harness, after its control; `None` if it does."""
        if self._budget is None:
            return "no trials were wanted"
        if len(self._done) >= self._most:
            return f"{self._most} trials are the most for one failure"
        older = older_state(self._case) if harness == "steps" else None
        steps = 1 if older is None else len(older.attempts) + 1
        runs = 1 if harness in self._controls else 2
        if self._budget.allows(steps * runs):
            return None
        if self.out_of_time:
            return f"{self._budget} was spent"
        return f"{self._budget} does not allow {steps * runs} more steps"

    @property
    def out_of_time(self) -> bool:
        """Whether the budget is spent."""
        return self._budget is not None and self._budget.spent

    def not_tried(self) -> list[str]:
        """What was not tried because of the budget, in words."""
        return [f"not tried: {', '.join(changes)}: {reason}" for reason, changes in self._not_tried.items()]

    # ---- controls

    def control(self, harness: str) -> str:
        """Why trials in this harness prove nothing; empty if the unchanged step fails in it as it did."""
        if harness not in self._controls:
            check = {"step": self._step_again, "update": self._update_again, "steps": self._steps_again}.get(harness)
            if check is None:
                return ""
            started = time.monotonic()
            reason, result = check()
            took = round((time.monotonic() - started) * 1e3, 1)
            control = None if result is None else control_trial(harness, reason, result, took)
            self._controls[harness] = reason, control
        return self._controls[harness][0]

    def _step_again(self) -> tuple[str, Rerun | None]:
        """The control of the step: unchanged, it must fail as it did. What cannot be restored is noted."""
        failed = self._case.failure
        if failed.forward is None:
            raise LookupError("the two-line form cannot compute the loss again; guard.attempt can")
        if failed.symptom == "optimizer" and failed.crew is not None:
            return "the step itself is finite, only its update is not", None
        result = run_step(self._case, stop_early=False)
        assert result.loss is not None
        if not result.finite and fails_alike(failed, result.loss, result.bad):
            return "", result
        how = "is finite" if result.finite else "fails in another way"
        reason = f"the unchanged step {how} when it is run again"
        if failed.symptom == "optimizer":  # its gradients may be those of several micro-batches
            return reason, result
        hidden = cannot_rewind(failed.forward, failed.batch)
        about = f"; it reads what cannot be restored: {', '.join(hidden[:3])}" if hidden else ""
        self.notes.append(f"no trial counts: {reason}{about}")
        return reason, result

    def _update_again(self) -> tuple[str, Rerun]:
        with update_rewound(self._case):
            finite = update_is_finite(self._case)
        return "the unchanged update is finite when it is run again" if finite else "", Rerun(finite)

    def _steps_again(self) -> tuple[str, Rerun]:
        """The steps since an older state at their own learning rates must reach this failure, and not another one
        before."""
        result = self._driven(own_rate)
        if self.stands_in:
            fails = not result.finite or self._raised(result.loss) is not None
            if not fails and len(with_earlier_inputs(self._case)) > 1:
                self.varied = True
                varied = self._driven(own_rate)
                self.varied = not varied.finite
                if self.varied:
                    return "", varied
            return "" if fails else "updates on this batch at the same learning rate do not fail", result
        if result.finite:
            return "the same steps at the same learning rate do not fail when they are run again", result
        if result.loss is None:
            return "the same steps at the same learning rate fail earlier when they are run again", result
        alike = fails_alike(self._case.failure, result.loss, result.bad)
        return "" if alike else "the same steps fail in another way", result

    def _raised(self, loss: float | None) -> float | None:
        """The loss of this batch with the weights from before the updates on it, if those raised it far."""
        before = self.older_weights()
        if loss is None or before is None or not before.finite or not before.loss:
            return None
        return before.loss if has_grown(abs(loss / before.loss)) else None

    # ---- the step, with one thing changed

    def again(self) -> Trial:
        """Nothing changed: whether the step fails again as the program runs it."""
        return self.run("again", "nothing: the same step once more", lambda: run_step(self._case), harness="none")

    def single_precision(self) -> Trial:
        """Every operation in float32 instead of half precision."""
        return self.run(
            "fp32", "every operation in float32", lambda: run_step(self._case, around=SinglePrecision()), harness="step"
        )

    def fails_next_in_float32(self) -> Op | None:
        """What fails with every operation in float32; `None` if that failed before."""
        if self._case.failure.crew is not None:  # no second trace by all ranks
            return None
        op = replay_step(self._case.failure, around=SinglePrecision()).op
        before = self._case.capture
        if op is None or (before is not None and (op.name, op.place) == (before.op.name, before.op.place)):
            return None
        return op

    def memory_filled(self, *, zeros: bool) -> Trial:
        """Memory that the step allocates filled, with zeros or with NaN. What it holds otherwise is chance, so that the
        step as it was is no control."""
        what, filled = ("zeros", filled_with_zeros) if zeros else ("NaN", filled_with_nan)
        return self.run(
            f"memory:{what}",
            f"fresh memory filled with {what}",
            lambda: run_step(self._case, around=filled()),
            harness="none",
        )

    def in_plain_forms(self) -> Trial:
        """Operators that have a plain form in that form, and attention in its math form."""

        def experiment() -> Rerun:
            with plain_forms() as mode:
                result = run_step(self._case, around=mode)
            names = " and ".join(name.replace("::", ".") for name in mode.hits) or "attention"
            return Rerun(result.finite, result.loss, result.bad, f"{names} in the plain form")

        return self.run("plain_forms", "operators in their plain form", experiment, harness="step")

    def in_log_space(self) -> Trial:
        """Logarithms of softmax, sigmoid and exp computed without leaving log space."""

        def experiment() -> Rerun:
            mode = LogSpace()
            result = run_step(self._case, around=mode)
            if not mode.lines:
                raise LookupError("no logarithm of a softmax, sigmoid or exp was found")
            forms = " and ".join(LOG_SPACE[origin] for origin in dict.fromkeys(origin for origin, _ in mode.lines))
            change = f"{forms} {_in_lines(line for _, line in mode.lines if line)}".rstrip()
            return Rerun(result.finite, result.loss, result.bad, change)

        return self.run("log_space", "logarithms in log space", experiment, harness="step")

    def without_samples(self, samples: tuple[int, ...], size: int) -> Trial:
        """The batch without the suspect samples."""
        rest = [i for i in range(size) if i not in set(samples)]
        shown = listed(samples)
        noun = "sample" if len(samples) == 1 else "samples"

        def experiment() -> Rerun:
            return Rerun(not fails(self._case.failure, rest, size))

        return self.run("without_samples", f"the batch without {noun} {shown}", experiment, harness="step")

    def is_left_out(self, what: str, origins: Callable[[int], bool]) -> bool:
        """Whether the loss is the same with 0 and with 1 in the place of non-finite values: the program does not use
        them. What it computes of them (tanh of Inf) it uses.

        Args:
            what: a name for these values.
            origins: whether an origin made them, by its index in the replay.
        """
        failed = self._case.failure
        if what not in self._left_out:
            self._left_out[what] = False
            if failed.repeatable and failed.crew is None and not self.out_of_time and not self.control("step"):
                with contextlib.suppress(Exception):  # a changed value may take another branch of the code
                    none, one = (loss_with(failed, value, origins) for value in (0.0, 1.0))
                    self._left_out[what] = none == one and math.isfinite(one)
        return self._left_out[what]

    def with_tensor(self, path: str, change: str, old: Tensor, new: Tensor) -> Trial:
        """The batch with one of its tensors changed."""
        batch = with_tensor(self._case.failure.batch, old, new)
        return self.run(f"changed:{path}", change, lambda: run_step(self._case, batch=batch), harness="step")

    def with_batch(self, name: str, change: str, batch: Any) -> Trial:
        """Another batch in place of the failed one."""
        return self.run(name, change, lambda: run_step(self._case, batch=batch), harness="step")

    def loss_scaled(self, factor: float, change: str) -> Trial:
        """The gradients of the loss times a factor."""
        return self.run("loss_scaled", change, lambda: run_step(self._case, seed=factor), harness="step")

    def replaced(self, source: Source, family: str) -> Trial:
        """The guilty call in another form at its own line, and at others where the same call fails next."""
        name = f"replaced:{family}"

        def experiment() -> Rerun:
            """Replace one line after the other, until the step is finite or no further line of the family fails."""
            sources = [source]
            while True:
                replacement = Replacement(sources, family)
                result = run_step(self._case, around=replacement)
                if not replacement.hits:
                    raise LookupError("the call was not found at its line")
                enough = result.finite or len(sources) == _MOST_LINES or self.out_of_time
                further = None if enough else self._next_line(sources, family)
                if further is None:
                    break
                sources.append(further)
            self._changed[name] = tuple(replacement.hits)
            change = (
                f"{self._forms(name)}{self._inside(name)} {_in_lines([one.place.line for one in replacement.hits])}"
            )
            return Rerun(result.finite, result.loss, result.bad, change)

        return self.run(name, f"another form of the call in line {source.line}", experiment, harness="step")

    def _forms(self, name: str) -> str:
        return " and ".join(dict.fromkeys(one.words for one in self._changed[name]))

    def _inside(self, name: str) -> str:
        """Where the calls are, if they are not written in the lines themselves."""
        return "" if all(one.direct for one in self._changed[name]) else " inside what is called"

    def written(self, trial: Trial) -> str:
        """What a trial wrote instead of the calls that it replaced: with their lines, where that is more than one."""
        if trial.name not in self._changed:
            return trial.change
        lines = dict.fromkeys(one.place.line for one in self._changed[trial.name])
        inside = self._inside(trial.name)
        return self._forms(trial.name) + inside + (f" {_in_lines(lines)}" if len(lines) > 1 or inside else "")

    def diff_of(self, number: int) -> str:
        """The diff of the user's lines that a trial replaced; empty where it replaced none, or is not certain."""
        trial = self.trials[number - 1]
        hits = self._changed.get(trial.name, ())
        if not hits or not all(one.direct for one in hits):
            return ""
        return diff_for((one.place.source(), one.function, one.form) for one in hits)

    def in_float32(self, places: Sequence[Place]) -> Trial:
        """The lines at which these operations were computed in float32: the first alone, then one more at a time,
        first without the modules that they call."""
        lines = list(dict.fromkeys((place.code.co_filename, place.line) for place in places))[:_MOST_LINES]

        def experiment() -> Rerun:
            """What the last run gave that could be made: weights of half precision do not take what is float32."""
            result: Rerun | None = None
            for modules, count in itertools.product((False, True), range(1, len(lines) + 1)):
                if result is not None and self.out_of_time:
                    break
                wide = WideLines(lines[:count], modules=modules)
                with contextlib.suppress(RuntimeError):
                    result = run_step(self._case, around=wide)
                if result is not None and wide.hits and result.finite:
                    shown = _in_lines(sorted(line for _, line in lines[:count])).removeprefix("in ")
                    return Rerun(True, result.loss, result.bad, f"{shown} in float32: {WIDE[modules]}")
            if result is None:
                raise LookupError("no line could be computed in float32 alone")
            return Rerun(False, result.loss, result.bad)

        return self.run("wide_lines", "the lines that lead to it in float32", experiment, harness="step")

    def _next_line(self, sources: list[Source], family: str) -> Source | None:
        """The next line at which a call of the same family fails, with those in `sources` replaced."""
        if self._case.failure.crew is not None:  # no second trace by all ranks
            return None
        replay = replay_step(self._case.failure, around=Replacement(sources, family))
        op = replay.op
        if op is None or op.place is None or not is_of_family(op, family):
            return None
        found = op.place.source()
        known = [(one.file, one.line) for one in sources]
        return None if (found.file, found.line) in known else found

    def with_weights(self, name: str, change: str, alter: Callable[[], None]) -> Trial:
        """Other weights for one run; `alter` may write the parameters, which are restored."""

        def experiment() -> Rerun:
            return run_step(self._case, around=self._altered(alter))

        return self.run(name, change, experiment, harness="step")

    def older_weights(self) -> Trial | None:
        """The step with the weights from before the recent steps; `None` if they are not kept.

        It is not finite only if it fails at the same operation and line. Then what the updates since did to the weights
        is not needed for the failure.
        """
        failed, before = self._case.failure, self._case.capture
        older = older_weights(self._case) if failed.repeatable and failed.crew is None else None
        if older is None or before is None:
            return None
        since, write = older

        def experiment() -> Rerun:
            replay = replay_step(failed, around=self._altered(write))
            op = replay.op
            if replay.failed and (op is None or (op.name, op.place) != (before.op.name, before.op.place)):
                raise LookupError("it fails at another operation")
            return Rerun(not replay.failed, replay.loss)

        both = ", and those that the other network had before its updates" if beside(self._case) else ""
        return self.run("older_weights", f"the weights of step {since:,}{both}", experiment, harness="step")

    @contextlib.contextmanager
    def _altered(self, alter: Callable[[], None]) -> Iterator[None]:
        """Changed weights, while the step runs. Inside the rewound step: rewinding restores the parameters, too."""
        others = [parameter for one in beside(self._case) for parameter in one.parameters]
        kept = [(p, p.detach().clone()) for p in (*self._case.failure.parameters.values(), *others)]
        try:
            with torch.no_grad():
                alter()
            yield
        finally:
            with torch.no_grad():
                for parameter, values in kept:
                    parameter.copy_(values)

    def writes_again(self, name: str, tensor: Tensor) -> bool:
        """Whether the step itself writes the bad values of a parameter or buffer: they are set to 0 before it."""
        if not self._case.failure.repeatable or f"rewritten:{name}" in self._done:
            return self._rewritten.get(name, False)

        @contextlib.contextmanager
        def cleared() -> Iterator[None]:
            kept = tensor.detach().clone()
            try:
                tensor.data.copy_(kept.nan_to_num(0.0, 0.0, 0.0))  # a counted write would be undone by the guard
                yield
            finally:
                self._rewritten[name] = any_nonfinite([tensor])
                tensor.data.copy_(kept)

        change = f"the non-finite values of {name} set to 0 before the step"
        self.run(f"rewritten:{name}", change, lambda: run_step(self._case, around=cleared()), harness="step")
        return self._rewritten.get(name, False)

    # ---- the update, with one thing changed

    def fresh_optimizer_state(self) -> Trial:
        """Runs the update again with the same gradients and an empty optimizer state."""

        def experiment() -> Rerun:
            with update_rewound(self._case):
                for layer in layers_of(self._case.failure.optimizer):
                    layer.state.clear()
                return Rerun(update_is_finite(self._case))

        return self.run("fresh_state", "a fresh optimizer state", experiment, harness="update")

    def update_in_single_precision(self) -> Trial:
        """Parameters, gradients and state in float32 for the update."""

        def experiment() -> Rerun:
            with update_rewound(self._case):
                return Rerun(update_in_float32(self._case))

        return self.run("update_fp32", "the update in float32", experiment, harness="update")

    def update_with(self, option: str, value: float) -> Trial:
        """The update alone, made again with another value of one option in every parameter group of the optimizer."""

        def experiment() -> Rerun:
            """The update with the other value, which is restored."""
            groups = [group for group in self._case.failure.optimizer.param_groups if option in group]
            kept = [group[option] for group in groups]
            try:
                with update_rewound(self._case):
                    for group in groups:
                        group[option] = value
                    finite = update_is_finite(self._case)
                    return Rerun(finite, loss_after(self._case) if finite else None)
            finally:
                for group, before in zip(groups, kept, strict=True):
                    group[option] = before

        change = f"{option}={value:g} in every parameter group"
        return self.run(f"update_{option}:{value:g}", change, experiment, harness="update")

    # ---- the steps before, with one thing changed

    def rate(self, name: str, change: str, rate_of: RateOf, *, this_batch: bool = False) -> Trial:
        """The steps since an older state again, with other learning rates and, if asked for, with this batch alone."""
        if this_batch or self.stands_in:
            change += ", with this batch"
        return self.run(name, change, lambda: self._driven(rate_of, this_batch=this_batch), harness="steps")

    def tenth_of_rate(self) -> Trial:
        """The steps since an older state again, with a tenth of every learning rate."""
        change = "a tenth of the learning rate from an older state on"
        return self.rate("tenth_of_rate", change, lambda _step, _group, rate: rate / 10)

    @functools.cached_property
    def moved(self) -> float:
        """How far the updates since an older state moved the weights, in units of their own size; 0 if unknown."""
        return moved(self._case)

    @property
    def updates(self) -> int:
        """How many updates were applied since an older state."""
        older = older_state(self._case)
        applied = self._case.run.history.applied()
        return 0 if older is None else sum(older.step <= each.step < self._case.failure.step for each in applied)

    @property
    def since(self) -> str:
        """From when on the updates are made again, in words."""
        older = older_state(self._case)
        return "" if older is None else f"since step {older.step:,}"

    @property
    def steps(self) -> str:
        """What is made again from an older state, in words."""
        return f"updates {self._on_what}" if self.stands_in else "the same steps"

    @property
    def _on_what(self) -> str:
        return "with earlier inputs of the model" if self.varied else "on this batch"

    @property
    def stands_in(self) -> bool:
        """Whether the batch of the failed step is used in all updates that are made again."""
        older = older_state(self._case)
        return older is not None and older.stands_in

    def steps_in_words(self, change: str) -> str:
        """What a finite trial of the steps since an older state shows."""
        older = older_state(self._case)
        if older is None or not older.stands_in:
            return f"the same batches {change} stay finite"
        updates = f"{len(older.attempts)} updates {self._on_what}, from the weights of step {older.step:,},"
        control = next((each for each in self.controls if each.harness == "steps"), None)
        if control is None or not control.finite or (before := self._raised(control.loss)) is None:
            return f"{updates} fail again; {change} they do not"
        return f"{updates} raise its loss from {before:.3g} to {control.loss:.3g}; {change} they do not"

    def steps_with(self, name: str, change: str, alter: Callable[[Any], Any]) -> Trial:
        """The steps since an older state again, each with `alter(batch)` instead of its batch."""
        return self.run(name, change, lambda: self._driven(own_rate, alter), harness="steps")

    def weights_diverged(self) -> bool | None:
        """Whether an earlier batch has a much larger loss with the weights of now; `None` if that is not known."""
        if self._drift is None and not self.out_of_time:
            self._drift = drift(self._case)
        return None if self._drift is None else self._drift >= _DIVERGED

    def drive(
        self, since: int, rates: Mapping[int, tuple[float, ...]], *, average: Callable[[], None] | None = None
    ) -> Part:
        """Make the steps since an older state again, and the failed one: see `earlier_steps.drive`."""
        return drive(self._case, since, rates, average=average)

    def _driven(self, rate_of: RateOf, alter: Callable[[Any], Any] | None = None, *, this_batch: bool = False) -> Rerun:
        """The steps from an older state up to the failed one; notes where only all ranks together could make them."""
        failed = self._case.failure
        self.wants_others = self.wants_others or (
            failed.repeatable and failed.rng is not None and failed.averaged and failed.crew is None
        )
        return driven(self._case, rate_of, alter, this_batch=this_batch)
