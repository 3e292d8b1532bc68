"""Notices what a script does by itself: a loss, a batch or gradients that it tested, and then did not use as they were.

The script's questions are the sign (`AskedTensors`): a loss that was tested, is not finite and gets no backward pass
until something else begins was skipped by the script. Two mistakes show without any NaN: gradients that are never
cleared, and two steps for one backward pass.

EventDetector    notices the events of one optimizer; `EventRecorder` makes incidents of them
note_cleaned     notices data that the script passes through `nan_to_num`

`script_events` counts them.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from nantrap import finite
from nantrap.guard.collect import Collector
from nantrap.guard.driver import Driver
from nantrap.guard.script_events import (
    SKIPPED,
    EventKind,
    EventRecorder,
    EventTable,
    ScriptEvent,
    bad_micro,
    first_bad,
    numbered,
)
from nantrap.guard.session import Session
from nantrap.guard.torch_private import version_of
from nantrap.guard.window import Micro, Window
from nantrap.launch.loaders import Batches
from nantrap.launch.position import Position
from nantrap.launch.shared import BadData, Shared
from nantrap.locate import RootCall
from nantrap.locate.twoline.caller import KeptFrame, keep_frames, seen_from
from nantrap.locate.variables.provenance import trace_given

_REPLACED = "the script replaced this non-finite loss by a constant, so there is no gradient"
_CLEARED = "the script cleared the gradients of this step instead of making it"
_NO_STEP = "the script made no step from this loss"
_OTHER_LOSS = "the script left this non-finite loss out and trained on another one"
_EARLIER_LOSS = "an earlier loss of this step is not finite, and its gradients are not in the step"
_REPAIRED = "the script changed its non-finite gradients to finite ones and made the step"


class GradientMark:
    """One gradient as it was when the last step had ended, to see whether the script clears it before the next."""

    __slots__ = ("gradient", "is_counting", "parameter", "version")

    def __init__(self) -> None:
        self.parameter: Tensor | None = None
        self.gradient: Tensor | None = None
        """The gradient of `parameter`, and how often it had been written."""
        self.version = 0
        self.is_counting = False
        """Whether the gradients of the step before were not cleared."""

    def is_untouched(self) -> bool:
        """Whether the gradient is still there and nothing wrote it since."""
        kept, parameter = self.gradient, self.parameter
        return (
            kept is not None and parameter is not None and parameter.grad is kept and version_of(kept) == self.version
        )


class EventDetector:
    """Notices what the script does by itself with the steps of one optimizer.

    State held: whether the step that comes next was abandoned already, where the script was when the present one
    became bad, and a gradient of the last step.

    Args:
        session: of the run.
        driver: of the script's loop.
        collector: of the script's loop.
        position: where the script is in its data.
        shared: what all guards of the script share.
        reaches: whether a loss was computed from what this guard watches.
        always_asks: the script's questions are of interest at any time, not only after a forward pass.
    """

    def __init__(
        self,
        session: Session,
        driver: Driver,
        collector: Collector,
        position: Position,
        shared: Shared,
        *,
        reaches: Callable[[Tensor], bool],
        always_asks: bool,
    ) -> None:
        self.is_recorded = False
        """The loss of the step that comes next was replaced by a constant, and that is recorded."""
        self.frames: list[KeptFrame] = []
        """Where the script was when this step became bad: its variables belong to the bad batch there."""
        self.accumulates = False
        """Whether a step has been made of several batches: one that the script leaves out is a part of a step then."""
        self.mark = GradientMark()
        self.events = EventTable(session.recorder.say)
        self._recorder = EventRecorder(session, driver, collector, self.events, of_guard=shared.activity.of_guard)
        self._session = session
        self._driver = driver
        self._collector = collector
        self._position = position
        self._asked = shared.asked
        self._activity = shared.activity
        self._batches = shared.batches
        self._diagnosed = shared.diagnosed
        self._reaches = reaches
        self._always_asks = always_asks

    # ---- steps that the script does not make

    def record_abandoned(self) -> bool:
        """Record a forward pass whose loss the script tested and abandoned; its buffers are restored immediately.

        Returns:
            Whether a whole step was abandoned.
        """
        asked, abandoned = self._asked, False
        asked.open = False
        for loss in asked.take(wanted=self._reaches):
            frames, replaced = asked.take_frames(), asked.replaced
            asked.replaced = False
            call = self._collector.take_root_call()
            if call is not None:
                call.passed = not frames
                self._position.note(call, bad=True)
            window = self._collector.open() if self.accumulates else self._collector.window
            with _seen_from(frames):
                if window is not None and (window.micros or self.accumulates):
                    self._recorder.drop_micro_batch(window, self._bad_micro(loss, call), by_script=True)
                else:
                    skipped = asked.ended or SKIPPED
                    self._abandon(loss, call, _REPLACED if replaced else skipped)
                    abandoned = True
            asked.data = None
            break  # several losses of one forward pass are one incident
        if abandoned:
            asked.tensors = []
        asked.open = self._always_asks
        return abandoned

    def record_replaced(self, loss: Tensor, call: RootCall | None) -> None:
        """Record the step now: the script runs a backward pass from a constant in the place of a bad loss."""
        self._collector.window = None
        with _seen_from(self._asked.take_frames()):
            self._abandon(loss, call, _REPLACED)
        self.is_recorded, self._asked.data = True, None

    def record_cleared(self, window: Window) -> None:
        """Record a bad step that the script gives up: it is about to clear the gradients."""
        if window.micros and not self._is_of_others(window) and self._is_bad(window):
            self._give_up(window, _CLEARED)
        self.frames = []

    def record_left(self) -> None:
        """Record a bad step that the script gives up: it begins something else after a bad loss."""
        window = self._collector.window
        if window is not None and window.micros and window.micros[-1].bad and not self._is_of_others(window):
            self._give_up(window, _NO_STEP)
            self._collector.window = None

    def record_all_left_out(self, window: Window) -> bool:
        """Record a step of which the script left every micro-batch out. Returns whether it is such a step."""
        if window.micros or not window.dropped or window.left_by_script < window.dropped or self._recorder.read_norm():
            return False
        self._recorder.skip_dropped(window)
        return True

    def record_batch(self, data: BadData) -> None:
        """Record a bad batch that the script left out: it tested the batch, called no model and took the next one."""
        if self._activity.busy or self._collector.window is not None:
            return
        self._position.move_to(data.batch)
        self._recorder.skip_batch(data.name, data.tensor, data.batch.indices)

    def report_value(self, window: Window, words: str) -> None:
        """Record a value that no optimizer makes a step from and that is not finite; nothing is prevented."""
        self._recorder.report_value(window, words)

    # ---- steps that the script makes without something bad

    def record_other_loss(self, window: Window, micro: Micro, loss: Tensor) -> None:
        """Record a bad loss that the script tested and left out: it trains on another, such as that of other heads."""
        self._recorder.leave_out(window, self._recorder.observe(self._bad_micro(loss, micro.root_call)), _OTHER_LOSS)

    def record_earlier_loss(self, window: Window) -> None:
        """Record a bad loss whose gradients the script cleared by hand before it went on: every gradient is finite.

        Loops with a separate copy of the weights do that; no `zero_grad` of the optimizer or the model shows it. Where
        gradients are spread over ranks, those of this rank do not tell.
        """
        bad = [micro for micro in window.micros if micro.bad] if self._session.setup.shards is None else []
        if not bad or window.micros[-1].bad or not math.isfinite(self._recorder.read_norm()):
            return
        with _seen_from(self.frames):
            self._recorder.leave_out(window, self._recorder.observe(bad[-1]), _EARLIER_LOSS)
        window.micros[:] = [micro for micro in window.micros if not micro.bad]

    def record_repaired(self, window: Window) -> None:
        """Record bad gradients that the script tested and changed: it makes the step, and all of them are finite now.

        If they are not, the step itself is judged, and refused.
        """
        observation, window.bad_before_repair = window.bad_before_repair, None
        if math.isfinite(self._recorder.read_norm()):
            self._recorder.leave_out(window, observation, _REPAIRED)
            window.micros[:] = [micro for micro in window.micros if not micro.bad]

    def drop_micro_batch(self, window: Window, micro: Micro) -> None:
        """Leave a bad micro-batch out of the step, for the script; its backward pass is not run."""
        self._recorder.drop_micro_batch(window, micro, by_script=False)

    def tests_gradient(self, tensor: Tensor) -> bool:
        """Whether the tensor that the script tests is a gradient of a step that is being made.

        If it is bad, that is noted: the script may repair it before it makes the step.
        """
        window = self._collector.window
        if window is None or not any(each.grad is tensor for each in self._session.protected.members.parameters):
            return False
        if window.bad_before_repair is None and window.micros and not all(micro.bad for micro in window.micros):
            with self._activity.of_guard():
                if finite.any_nonfinite([tensor]):
                    micro = first_bad(window)
                    window.bad_before_repair = self._recorder.observe(micro, self._recorder.read_norm())
        return True

    def restore_buffers(self) -> None:
        """Restore buffers into which a forward pass that led nowhere has written NaN."""
        ledger = self._session.protected.ledger
        if not self._collector.begun or not ledger or not finite.any_nonfinite(ledger.suspects()):
            return
        bad = [name for name, _ in ledger.names_of_bad()]
        if bad and self._session.policy.on_incident != "observe":
            ledger.restore_buffers()
            others = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            step = self._session.progress.step
            self.events.note(ScriptEvent(EventKind.BUFFERS_RESTORED, bad[0] + others, step=step))

    # ---- mistakes that show without any NaN

    def note_uncleared(self, loss: Tensor) -> None:
        """The first backward pass of a step begins: note whether it adds to the last gradients.

        Those of a model that the loss does not reach are replaced: a worker copies its own into the common one.
        """
        self.mark.is_counting = self.mark.is_untouched() and self._reaches(loss)
        if self.mark.is_counting:
            self.events.note(ScriptEvent(EventKind.NOT_CLEARED))
        else:
            self.events.end_row(EventKind.NOT_CLEARED)

    def is_repeated_step(self, *, refused: bool) -> bool:
        """Whether a step now would use the gradients of the last one once more.

        Args:
            refused: the last step was not made, and this one will not be made either.
        """
        if not self.mark.is_untouched():
            return False
        if not refused:
            scaled = self._driver.scaling.enabled
            words = ": scaler.step(optimizer) makes it already" if scaled else ""
            self.events.note(ScriptEvent(EventKind.STEP_REPEATED, words))
        return True

    # ---- parts

    def keep_frames(self) -> None:
        """A loss or a norm is not finite: note where the script is, unless an earlier one of this step was."""
        self.frames = self.frames or keep_frames()

    def as_kept(self) -> AbstractContextManager[None]:
        """The script as it was where its frames were kept, which are given up."""
        frames, self.frames = self.frames, []
        return _seen_from(frames)

    def note_judged(self, window: Window) -> None:
        """The step was refused: other optimizers need not report its bad losses."""
        self._diagnosed.judge(self, [micro.loss.total for micro in window.micros if micro.bad])

    def _is_bad(self, window: Window) -> bool:
        """Whether a step that the script gives up was bad: its loss, or its gradients as they are now."""
        return any(micro.bad for micro in window.micros) or not math.isfinite(self._recorder.read_norm())

    def _is_of_others(self, window: Window) -> bool:
        """Whether each bad loss of this step was judged by the guard of another optimizer, whose step it belongs to."""
        bad = [micro for micro in window.micros if micro.bad]
        return bool(bad) and all(self._diagnosed.is_judged_by_another(self, micro.loss.total) for micro in bad)

    def _give_up(self, window: Window, words: str) -> None:
        """The script gives a bad step up. Many do so by clearing the gradients when they have the next batch."""
        frames, self.frames = self.frames, []
        newest = self._batches.last[-1] if self._batches.last else None
        for micro in window.micros:
            if micro.root_call is not None and not frames:
                micro.root_call.passed = micro.root_call.origin is not newest
        with _seen_from(frames):
            self._recorder.skip_step(window, words)

    def _abandon(self, loss: Tensor, call: RootCall | None, words: str) -> None:
        """The script makes no step from a bad loss: recorded as a step that it skipped."""
        micros = [self._bad_micro(loss, call)]
        skipped = Window(time.perf_counter(), whole=True, micros=micros, without_gradient=True)
        self._recorder.skip_step(skipped, words)

    def _bad_micro(self, loss: Tensor, call: RootCall | None) -> Micro:
        """A micro-batch of a loss that is not finite, with what its graph still shows."""
        with self._activity.of_guard():
            return bad_micro(loss, call)


def note_cleaned(tensor: Tensor, batches: Batches, events: EventTable) -> int:
    """Note data that the script passes through `nan_to_num`.

    Args:
        tensor: the data.
        batches: what the data loaders gave.
        events: the table in which they are counted.

    Returns:
        How many samples are not finite; a scalar counts as one.
    """
    if not finite.any_nonfinite([tensor]):
        return 0
    if not tensor.dim():
        events.note(ScriptEvent(EventKind.DATA_CLEANED, "a scalar"))
        return 1
    bad = ~torch.isfinite(tensor)
    rows = bad.reshape(len(bad), -1).any(1).nonzero().ravel().tolist()
    indices = batches.indices_of_bad(tensor)
    if not indices or len(indices) != len(tensor):
        shape = "×".join(map(str, tensor.shape))
        words, samples = f"{numbered('row', rows)} of a tensor of shape {shape}{_first_in(events)}", ()
    else:
        samples = tuple(indices[row] for row in rows)
        words = f"{numbered('sample', rows)} of the batch ({numbered('dataset index', samples, 'dataset indices')})"
    events.note(ScriptEvent(EventKind.DATA_CLEANED, words, samples=samples))
    return len(rows)


def _first_in(events: EventTable) -> str:
    """`, first in rewards[2], assigned at train.py:41, from reward`: where a tensor was bad first. Only for the first
    event, which is printed."""
    with contextlib.suppress(Exception):
        links = trace_given() if not events.count(EventKind.DATA_CLEANED) else ()
        if links and links[0].is_assigned:
            return f", first in {links[0].value.path}, assigned at {links[0].place}{links[0].by}"
    return ""


def _seen_from(frames: list[KeptFrame]) -> AbstractContextManager[None]:
    """The script as it was in these frames; as it is now if there are none."""
    return seen_from(frames) if frames else contextlib.nullcontext()
