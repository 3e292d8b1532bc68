"""Notices bad losses that a loop in the two-line form drops by itself: `if torch.isnan(loss): continue`.

No function of PyTorch is replaced for that. A loop that comes back to the same call of the model without a backward
pass has dropped what it computed. If a variable of the loop then holds a scalar that was computed from that call and is
not finite, it is the loss. A sum over several calls looks the same at first: `loss = loss + criterion(model(x), y)`. So
a loss is only suspected then, and counts as dropped when nothing that the loop holds, and no loss that it runs
backward, was computed from it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any, NamedTuple

from torch import Tensor

from nantrap import finite
from nantrap.guard.collect import Collector
from nantrap.guard.driver import Driver
from nantrap.guard.script_events import SKIPPED, EventRecorder, EventTable, bad_micro
from nantrap.guard.session import Session
from nantrap.locate import RootCall
from nantrap.locate.nodes import nodes_below
from nantrap.locate.source import is_user_code
from nantrap.locate.twoline.caller import names_in, near_callers

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
