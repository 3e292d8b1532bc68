"""What a script does by itself: the kinds of such events, the table that counts them, and their incidents.

The table prints a line when events of a kind become many, and gives the lines of the summary at the end. Those with a
non-finite value are contained, diagnosed and recorded like any other (`EventRecorder`); what differs from a step that
the guard refuses is who decided, and that only this rank knows of it. `nantrap run` notices what a script does
(`launch/event_detector.py`). In the two-line form `DroppedLosses` notices the bad losses that a loop drops (`if
torch.isnan(loss): continue`), and replaces no function for that. A loop that comes back to the same call of the model
without a backward pass has dropped what it computed. If a variable of the loop then holds a scalar that was computed
from that call and is not finite, it is the loss. A sum over several calls looks alike at first (`loss = loss +
criterion(model(x), y)`), so a loss is only suspected then, and counts as dropped when nothing that the loop holds,
and no loss that it runs backward, was computed from it.
"""

from __future__ import annotations

import contextlib
import enum
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, NamedTuple

from torch import Tensor

from nantrap import finite
from nantrap.guard.collect import Collector
from nantrap.guard.diagnosis.describe import Observation, bad_batch, observe
from nantrap.guard.diagnosis.diagnose import diagnose
from nantrap.guard.driver import Driver
from nantrap.guard.dropping import drop
from nantrap.guard.session import Session
from nantrap.guard.state.members import current_rates
from nantrap.guard.window import Diagnosed, Loss, Micro, Reading, Window
from nantrap.incident import Action
from nantrap.incident.wording import some_of
from nantrap.locate import RootCall
from nantrap.locate.location import finding
from nantrap.locate.nodes import nodes_below
from nantrap.locate.source import is_user_code
from nantrap.locate.twoline.autopsy import examine
from nantrap.locate.twoline.caller import names_in, near_callers
from nantrap.thresholds import DEAD_AFTER

_SEVERAL = 5
"""Steps in a row that a script does not make, after which a line says so."""
_OFTEN = 3
_MOST_SAMPLES = 1000


class EventKind(enum.Enum):
    """What a script did by itself, in the order in which the summary says it."""

    DATA_CLEANED = "replaced non-finite data by numbers (`nan_to_num`)"
    STEP_NOT_MADE = "made no step from a loss or a batch that is not finite"
    LEFT_OUT = "made a step without a loss or gradients that are not finite"
    MICRO_BATCH_LEFT_OUT = "left a micro-batch out of a step"
    VALUE_USED = "used a value that is not finite, and no optimizer makes a step from it"
    NOT_CLEARED = "added the gradients of a step to those of the step before"
    STEP_REPEATED = "made a step a second time with the same gradients"
    BUFFERS_RESTORED = "ran a forward pass that left non-finite values in buffers"


@dataclass(frozen=True, slots=True)
class ScriptEvent:
    """Something that a script did by itself.

    Attributes:
        kind: what it did.
        words: the same in words, for its incident; where there is none, what the printed line adds.
        step: of the optimizer, when the script did it.
        applied: how many steps had been applied by then. Events between which no step is applied are in a row.
        samples: the dataset's indices of the samples, where they are known.
    """

    kind: EventKind
    words: str = ""
    step: int = 0
    applied: int = 0
    samples: tuple[int, ...] = ()


_SAID = {
    (EventKind.DATA_CLEANED, 1): (
        "the script replaces non-finite values of its data by nan_to_num: {words}; further ones are counted"
    ),
    (
        EventKind.STEP_NOT_MADE,
        _SEVERAL,
    ): "step {step:,}: the script skipped the last {number} steps itself; further skips are counted, not printed",
    (EventKind.STEP_NOT_MADE, DEAD_AFTER): (
        "step {step:,}: the script has skipped all {number} steps since step {first:,} itself: nothing is learned "
        "(NT505 dead_training)"
    ),
    (EventKind.NOT_CLEARED, _OFTEN): (
        "the gradients are not cleared between steps, so each step adds to all the ones before: "
        "call optimizer.zero_grad() before each backward pass (NT871 zero_grad_missing)"
    ),
    (EventKind.STEP_REPEATED, _OFTEN): (
        "optimizer.step() is called twice for each backward pass, so each update is made twice{words} "
        "(NT875 double_step)"
    ),
    (EventKind.BUFFERS_RESTORED, 1): (
        "step {step:,}: a forward pass left non-finite values in buffer {words}; they were restored. Further such "
        "passes are counted, not printed"
    ),
}
"""What is printed when this many events of a kind are in a row."""

_SAID_AT_THE_END = {
    EventKind.DATA_CLEANED: (1, "{number:,} {data} cleaned by the script with nan_to_num{indices}"),
    EventKind.STEP_NOT_MADE: (
        DEAD_AFTER,
        "the script skipped the last {number:,} steps itself: nothing was learned (NT505 dead_training)",
    ),
    EventKind.NOT_CLEARED: (
        _OFTEN,
        "the gradients were not cleared in the last {number:,} steps (NT871 zero_grad_missing)",
    ),
    EventKind.STEP_REPEATED: (_OFTEN, "{number:,} updates were made twice (NT875 double_step)"),
    EventKind.BUFFERS_RESTORED: (
        1,
        "forward passes after which non-finite buffers were restored: {number:,}",
    ),
}
"""From how many events in a row on the summary has a line, and the line."""


@dataclass(slots=True)
class _Row:
    """The events of one kind. Holds how many there were, and how many of them in a row."""

    count: int = 0
    in_a_row: int = 0
    applied: int = 0
    samples: dict[int, None] = field(default_factory=dict)
    has_unknown_samples: bool = False

    def add(self, event: ScriptEvent) -> None:
        """One more event."""
        self.count += 1
        self.in_a_row = self.in_a_row + 1 if event.applied == self.applied else 1
        self.applied = event.applied
        self.has_unknown_samples = self.has_unknown_samples or not event.samples
        if len(self.samples) < _MOST_SAMPLES:
            self.samples.update(dict.fromkeys(event.samples))

    def fill(self, text: str) -> str:
        """The line of the summary."""
        one, several = ("tensor", "tensors") if self.has_unknown_samples else ("batch", "batches")
        indices = f": {numbered('dataset index', list(self.samples), 'dataset indices')}" if self.samples else ""
        return text.format(number=self.in_a_row, data=one if self.in_a_row == 1 else several, indices=indices)


class EventTable:
    """Counts the events of a script: of one optimizer, or of the data that all of them share.

    Args:
        say: prints a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._rows = {kind: _Row() for kind in EventKind}

    def count(self, kind: EventKind) -> int:
        """How often the script did this."""
        return self._rows[kind].count

    def note(self, event: ScriptEvent) -> None:
        """Count an event, and print what it means if that is due."""
        row = self._rows[event.kind]
        row.add(event)
        number = row.in_a_row
        text = _SAID.get((event.kind, number))
        if text is not None:
            first = event.step - number + 1
            self._say(text.format(words=event.words, step=event.step, number=number, first=first))

    def end_row(self, kind: EventKind) -> None:
        """The script did not do it this time: the next event is the first of a new row."""
        self._rows[kind].in_a_row = 0

    def lines(self, *, applied: int = 0) -> list[str]:
        """What the summary says of a run in which this many steps were applied."""
        found = []
        for kind, (least, text) in _SAID_AT_THE_END.items():
            row = self._rows[kind]
            has_ended = kind is EventKind.STEP_NOT_MADE and row.applied != applied
            if row.in_a_row >= least and not has_ended:
                found.append(row.fill(text))
        return found


def numbered(noun: str, numbers: Sequence[int], several: str = "") -> str:
    """`sample 4`, `samples 4, 7`."""
    return f"{noun if len(numbers) == 1 else several or noun + 's'} {some_of([str(each) for each in numbers])}"


SKIPPED = "the script skipped this batch itself"
_OTHERS_STAY = ", the others stay"
_ALL_LEFT_OUT = "the script left every micro-batch of this step out"
_BATCH_LEFT_OUT = "the script left this batch out before it called the model"


def read_norm_alone(session: Session, driver: Driver) -> float:
    """Read the norm of the gradients as they are now, for what this rank alone has seen.

    Of sharded gradients it is that of this rank's shards: the whole one would wait for ranks that do not ask.
    """
    gradients = session.protected.members.gradients()
    if session.setup.shards is not None or any(hasattr(gradient, "to_local") for gradient in gradients):
        return finite.exact_local_norm(gradients)
    return finite.read([driver.norm()])[0]


class EventRecorder:
    """Records the events of a script that have a non-finite value, and counts them.

    Args:
        session: of the run.
        driver: of the script's loop.
        collector: of the script's loop.
        events: the table in which they are counted.
        of_guard: says that the guard is at work meanwhile.
    """

    def __init__(
        self,
        session: Session,
        driver: Driver,
        collector: Collector,
        events: EventTable,
        *,
        of_guard: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._session = session
        self._driver = driver
        self._collector = collector
        self._of_guard = of_guard
        self._events = events
        self._observes = session.policy.on_incident == "observe"

    def skip_step(self, window: Window, words: str) -> None:
        """Record a bad step that the script does not make: everything is restored, and the step counts as skipped."""
        session, protected = self._session, self._session.protected
        micro = first_bad(window)
        with self._of_guard():
            try:
                norm = math.nan if window.without_gradient else self.read_norm()
                buffers_bad = bool(protected.ledger.names_of_bad())
                seen_norm = 0.0 if window.without_gradient else norm
                observation = self.observe(micro, seen_norm, buffers_bad=buffers_bad)
                self._restore()
                diagnosed = diagnose(session, observation)
                self._restore()
                restored = None if self._observes else protected.verify()
                loss = micro.values[0] if micro.values else math.nan
                self._end_skipped(diagnosed, window, words, norm=norm, loss=loss, restored=restored)
                self._collector.note_refused(micro.root_call)
            finally:
                self._collector.end()

    def pass_over(self, micro: Micro, words: str) -> None:
        """Record a bad loss from which no step is made, when the next forward pass has begun: nothing is restored."""
        with self._of_guard(), self._session.protected.ledger.kept():
            diagnosed = diagnose(self._session, self.observe(micro))
        window = Window(time.perf_counter(), whole=True, micros=[micro], without_gradient=True)
        self._end_skipped(diagnosed, window, words, loss=micro.values[0] if micro.values else math.nan)

    def skip_batch(self, name: str, tensor: Tensor, indices: Sequence[int]) -> None:
        """Record a bad batch that the script left out before it called the model: nothing is run again.

        Args:
            name: what the script calls the tensor.
            tensor: the part of the batch that the script tested.
            indices: the dataset's indices of the samples.
        """
        with self._of_guard():
            diagnosed = bad_batch(self._session, [finding("batch", name, tensor, "data")])
            samples = diagnosed.incident.samples
            own = tuple(indices[sample] for sample in samples) if samples and max(samples) < len(indices) else ()
            diagnosed = diagnosed.with_incident(replace(diagnosed.incident, dataset_indices=own))
            window = Window(time.perf_counter(), whole=True, without_gradient=True)
            self._end_skipped(diagnosed, window, _BATCH_LEFT_OUT)

    def skip_dropped(self, window: Window) -> None:
        """End a step of which the script left every micro-batch out: it has no gradient."""
        window.given_up = window.without_gradient = True
        window.diagnosed = [(each, words.removesuffix(_OTHERS_STAY)) for each, words in window.diagnosed]
        with self._of_guard():
            incident = self._session.recorder.finish_dropped(window, Action.SKIP, decided_by="script")
            reading = Reading(rates=current_rates(self._session.protected.optimizer))
            self._session.recorder.end(window, reading, Action.SKIP, incident)
        self._events.note(self._event(EventKind.STEP_NOT_MADE, _ALL_LEFT_OUT))

    def leave_out(self, window: Window, observation: Observation, words: str) -> None:
        """Record something bad that has no part in a step which the script makes."""
        with (
            self._of_guard(),
            self._session.protected.ledger.kept(),
        ):  # the step goes on with what its forward wrote
            diagnosed = diagnose(self._session, observation)
        window.diagnosed.append((diagnosed, words))
        window.bad_left_out += 1
        self._events.note(self._event(EventKind.LEFT_OUT, words))

    def drop_micro_batch(self, window: Window, micro: Micro, *, by_script: bool) -> None:
        """Record a bad micro-batch that has no part in the step; its backward pass is not run."""
        number = len(window.micros) + window.dropped + 1
        words = f"micro-batch {number} left out{' by the script' if by_script else ''}{_OTHERS_STAY}"
        session = self._session
        with self._of_guard():
            diagnosed = diagnose(session, self.observe(micro))
            drop(session, window, diagnosed, words)
            session.protected.ledger.restore_mark()
        if by_script:
            window.left_by_script += 1
            self._events.note(self._event(EventKind.MICRO_BATCH_LEFT_OUT, words))

    def report_value(self, window: Window, words: str) -> None:
        """Record a value that is not finite and that no optimizer makes a step from: nothing is prevented."""
        session = self._session
        (micro,) = window.micros
        with self._of_guard():
            try:
                with session.protected.ledger.kept():
                    diagnosed = diagnose(session, self.observe(micro))
                reading = Reading(math.nan, micro.values[0] if micro.values else math.nan)
                incident = session.recorder.finish(diagnosed, Action.APPLY, words, decided_by="script")
                session.recorder.end(window, reading, Action.APPLY, incident)
            finally:
                self._collector.end()
        self._events.note(self._event(EventKind.VALUE_USED, words))

    def observe(self, micro: Micro, norm: float = 0.0, *, buffers_bad: bool = False) -> Observation:
        """Note what is bad in a micro-batch that this rank alone knows of."""
        with self._of_guard():
            return observe(self._session, micro, norm, buffers_bad=buffers_bad, copy_gradients=True)

    def read_norm(self) -> float:
        """Read the norm of the gradients as they are now."""
        with self._of_guard():
            return read_norm_alone(self._session, self._driver)

    def _restore(self) -> None:
        if not self._observes:
            self._session.protected.restore()

    def _event(self, kind: EventKind, words: str) -> ScriptEvent:
        return ScriptEvent(kind, words, self._session.progress.step, self._session.recorder.tally.applied)

    def _end_skipped(
        self,
        diagnosed: Diagnosed,
        window: Window,
        words: str,
        *,
        norm: float = math.nan,
        loss: float = math.nan,
        restored: list[str] | None = None,
    ) -> None:
        """End a step that the script does not make."""
        recorder = self._session.recorder
        event = self._event(EventKind.STEP_NOT_MADE, words)
        diagnosed = diagnosed.noting_first(words)
        incident = recorder.finish(diagnosed, Action.SKIP, words, decided_by="script", restored=restored)
        self._events.note(event)
        window.given_up = True
        reading = Reading(norm, loss, rates=current_rates(self._session.protected.optimizer))
        recorder.end(window, reading, Action.SKIP, incident)


def first_bad(window: Window) -> Micro:
    """The first micro-batch whose loss is bad, or the last one."""
    return next((micro for micro in window.micros if micro.bad), window.micros[-1])


def bad_micro(loss: Tensor, call: RootCall | None) -> Micro:
    """A micro-batch of a loss that is not finite, with what its graph still shows."""
    micro = Micro(Loss(loss, {}), root_call=call, values=[finite.value_of(loss.detach())])
    micro.evidence = examine(loss, call)
    return micro


# ---- losses that a loop in the two-line form drops

_MOST_PENDING = 16
_LONGEST = 16
"""Entries of a list or a dictionary that are looked at."""
_FRAMES = 4


class Suspect(NamedTuple):
    """A bad loss without a backward pass, and the model's call that it was computed from."""

    loss: Tensor
    call: RootCall


class DroppedLosses:
    """Notices the losses that the loop of one guard drops. Holds those that are suspected.

    Args:
        session: of the run.
        driver: of the guard.
        collector: of the guard.
    """

    def __init__(self, session: Session, driver: Driver, collector: Collector) -> None:
        self.events = EventTable(session.recorder.say)
        self.accumulates = False
        """Whether a step has been made of several backward passes: a loss that is dropped is a part of a step then."""
        self.pending: list[Suspect] = []
        self._session = session
        self._collector = collector
        self._recorder = EventRecorder(session, driver, collector, self.events)
        self._usual: Counter[tuple[CodeType, int] | None] = Counter()
        """The most calls from one place that were added up in one loss."""

    def before_pass(self, earlier: RootCall, place: tuple[CodeType, int] | None) -> None:
        """The model is called, and its last call has had no backward pass.

        Args:
            earlier: the last call.
            place: the instruction of the program that calls the model now; `None` for an evaluation.
        """
        if self.pending:
            self.settle(held=_held())
        if place is None or any(call.called_at == place for call in earlier.chain()):
            self.suspect(earlier, place)

    def before_backward(self, loss: Tensor) -> None:
        """A backward pass begins from a loss: what it was computed from is not dropped."""
        call = self._collector.root_call
        if self.pending:
            self.settle(held=_held(), used=loss)
        if call is not None and call.previous is not None:
            self._separate(call, loss)  # a call whose loss was dropped is no part of this sum
            self._usual |= Counter(each.called_at for each in call.chain())

    def before_step(self) -> None:
        """The step is made, and the model's last call has had no backward pass: the last micro-batch was dropped."""
        call = self._collector.root_call
        if call is not None and self.suspect(call):
            self.settle()
            self._collector.root_call = None

    def end(self) -> None:
        """No step follows: what was not used by now was dropped."""
        call = self._collector.root_call
        if call is not None:
            self.suspect(call)
            self._collector.root_call = None
        self.settle()

    def lines(self) -> list[str]:
        """What the summary says of the losses that the loop dropped."""
        return self.events.lines(applied=self._session.recorder.tally.applied)

    def suspect(self, call: RootCall, place: tuple[CodeType, int] | None = None) -> bool:
        """Look for a bad loss that was computed from a call; whether there is one."""
        if len(self.pending) >= _MOST_PENDING or any(each.call is call for each in self.pending):
            return False
        if not call.frames or any(each.cotangents for each in call.chain()):
            return False  # an evaluation, or the program ran a backward pass itself, without the guard
        made = set().union(*(each.nodes for each in call.chain()))
        begun = [each.called_at for each in call.chain()].count(place) < self._usual[place]
        for tensor in _held(call):
            if begun and not tensor.is_cpu:  # to read a tensor waits for its device, and this sum goes on
                continue
            if math.isfinite(finite.value_of(tensor.detach())):
                continue
            if not made.isdisjoint(nodes_below(tensor)):
                self._separate(call, tensor)
                self.pending.append(Suspect(tensor, call))
                self._collector.note_refused(call)
                self._restore_buffers()
                return True
        return False

    def settle(self, *, held: Iterable[Tensor] = (), used: Tensor | None = None) -> None:
        """Record what was dropped.

        Args:
            held: tensors of the program; a loss that is one of them, or that one was computed from, stays suspected.
            used: a loss that is run backward: what it was computed from was not dropped.
        """
        trained = nodes_below(used) if used is not None else {}
        suspects = [each for each in self.pending if each.loss.grad_fn not in trained]
        kept = list(held) if suspects else []
        above = nodes_below(*kept)
        self.pending = [each for each in suspects if each.loss.grad_fn in above]
        for suspect in suspects:
            if not any(suspect is each for each in self.pending):
                self._record(suspect)

    def _separate(self, call: RootCall, loss: Tensor) -> None:
        """End the chain of calls before the one of a dropped loss: this loss was not computed from it."""
        below = nodes_below(loss)
        dropped = [each.call for each in self.pending]
        later = call
        while (earlier := later.previous) is not None:
            if (earlier.passed or any(earlier is each for each in dropped)) and earlier.nodes.isdisjoint(below):
                later.previous = None
                return
            later = earlier

    def _record(self, dropped: Suspect) -> None:
        dropped.call.passed, dropped.call.frames = True, ()
        window = self._collector.open() if self.accumulates else self._collector.window
        micro = bad_micro(*dropped)
        if window is not None and (window.micros or self.accumulates):
            self._recorder.drop_micro_batch(window, micro, by_script=True)
        else:
            self._recorder.pass_over(micro, SKIPPED)

    def _restore_buffers(self) -> None:
        """What the forward pass of the dropped loss wrote must not stay in the buffers."""
        ledger = self._session.protected.ledger
        if self._session.policy.on_incident != "observe" and ledger and ledger.names_of_bad():
            ledger.restore_mark()


def _held(call: RootCall | None = None) -> Iterator[Tensor]:
    """The scalars with a graph that variables of the program hold: those of functions that are running, and those of
    the function that made a call."""
    frames = list(near_callers(_FRAMES))
    for caller in () if call is None else call.frames:
        if caller is not None and is_user_code(caller.f_code) and not any(caller is each for each in frames):
            frames.append(caller)
    for frame in frames:
        for value in names_in(frame).values():
            yield from _scalars(value)


def _scalars(value: Any) -> Iterator[Tensor]:
    """A tensor, or the tensors in a small collection, that can be losses."""
    if isinstance(value, (list, tuple)) and len(value) <= _LONGEST:
        several: Any = value
    elif isinstance(value, dict) and len(value) <= _LONGEST:
        several = value.values()
    else:
        several = (value,)
    for each in several:
        if isinstance(each, Tensor) and each.grad_fn is not None and each.numel() == 1 and each.is_floating_point():
            yield each
