"""What the script abandons: a loss, a batch or gradients that it tested, and then did not use as they were; a step that
it has a bad loss for, and does not make.

Here it is noticed; `given_up` records it. The script's questions are the sign (`asked`): a loss that was tested, is not
finite and gets no backward pass until something else begins was skipped by the script.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from torch import Tensor

from nantrap import finite
from nantrap.guard.collect import Collector
from nantrap.guard.loss import Loss
from nantrap.guard.parts import Parts
from nantrap.guard.window import Micro, Window
from nantrap.launch.given_up import GivenUp
from nantrap.launch.position import Position
from nantrap.launch.shared import BadData, Shared
from nantrap.locate import RootCall
from nantrap.locate.autopsy import examine
from nantrap.locate.caller import KeptFrame, keep_frames, seen_from

_SKIPPED = "the script skipped this batch itself"
_REPLACED = "the script replaced this non-finite loss by a constant, so there is no gradient"


class Abandoning:
    """Notices what the script abandons.

    State held: whether the step that comes next was abandoned already, and where the script was when the present one
    became bad.

    Args:
        parts: the collaborators of a step.
        collector: of the script's loop.
        given_up: records what was abandoned.
        position: where the script is in its data.
        shared: what all guards of the script share.
        reaches: whether a loss was computed from what this guard watches.
        always_asks: the script's questions are of interest at any time, not only after a forward pass.
    """

    def __init__(
        self,
        parts: Parts,
        collector: Collector,
        given_up: GivenUp,
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
        self._parts = parts
        self._collector = collector
        self._given_up = given_up
        self._position = position
        self._asked = shared.asked
        self._activity = shared.activity
        self._batches = shared.batches
        self._diagnosed = shared.diagnosed
        self._reaches = reaches
        self._always_asks = always_asks

    def record_abandoned(self) -> bool:
        """A forward pass whose loss the script tested and abandoned is an incident; its buffers are restored
        immediately.

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
            window = self._collector.window
            with seen_from(frames) if frames else contextlib.nullcontext():
                if window is not None and window.micros:
                    self._given_up.micro_batch(window, self._bad_micro(loss, call), "left out by the script")
                else:
                    skipped = asked.ended or _SKIPPED
                    self._abandon(loss, call, _REPLACED if replaced else skipped)
                    abandoned = True
            asked.data = None
            break  # several losses of one forward pass are one incident
        if abandoned:
            asked.tensors = []
        asked.open = self._always_asks
        return abandoned

    def replaced(self, loss: Tensor, call: RootCall | None) -> None:
        """The script runs a backward pass from a constant in the place of a bad loss. Its step is recorded now."""
        self._collector.window = None
        frames = self._asked.take_frames()
        with seen_from(frames) if frames else contextlib.nullcontext():
            self._abandon(loss, call, _REPLACED)
        self.is_recorded, self._asked.data = True, None

    def keep_frames(self) -> None:
        """A loss or a norm is not finite: note where the script is, unless an earlier one of this step was."""
        self.frames = self.frames or keep_frames()

    def note_judged(self, window: Window) -> None:
        """The step was refused: other optimizers need not report its bad losses."""
        self._diagnosed.judge(self, [micro.loss.total for micro in window.micros if micro.bad])

    def clears(self, window: Window) -> None:
        """The script is about to clear the gradients of a step that is not made: it gives the step up if it is bad."""
        if window.micros and not self._is_of_others(window) and self._given_up.is_bad(window):
            self._give_up(window, "the script cleared the gradients of this step instead of making it")
        self.frames = []

    def leaves(self) -> None:
        """The script begins something else after a bad loss: it makes no step from it."""
        window = self._collector.window
        if window is not None and window.micros and window.micros[-1].bad and not self._is_of_others(window):
            self._give_up(window, "the script made no step from this loss")
            self._collector.window = None

    def leave_out(self, data: BadData) -> None:
        """The script tested a batch and took the next one: it has skipped the bad one before any model was called."""
        if self._activity.busy or self._collector.window is not None:
            return
        self._position.move_to(data.batch)
        self._given_up.data(data.tensor, data.name, data.batch.indices)

    def tests_gradient(self, tensor: Tensor) -> bool:
        """Whether the tensor that the script tests is a gradient of a step that is being made.

        If it is bad, that is noted: the script may repair it before it makes the step.
        """
        window = self._collector.window
        if window is None or not any(each.grad is tensor for each in self._parts.protected.members.parameters):
            return False
        if window.bad_before_repair is None and window.micros and not all(micro.bad for micro in window.micros):
            with self._activity.of_guard():
                if finite.any_nonfinite([tensor]):
                    window.bad_before_repair = self._given_up.gradients(window)
        return True

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
        with seen_from(frames) if frames else contextlib.nullcontext():
            self._given_up.step(window, words)

    def _abandon(self, loss: Tensor, call: RootCall | None, words: str) -> None:
        """The script makes no step from a bad loss: recorded as a step that it skipped."""
        micros = [self._bad_micro(loss, call)]
        skipped = Window(time.perf_counter(), whole=True, micros=micros, without_gradient=True)
        self._given_up.step(skipped, words)

    def _bad_micro(self, loss: Tensor, call: RootCall | None) -> Micro:
        """A micro-batch of a loss that is not finite, with what its graph still shows."""
        with self._activity.of_guard():
            micro = Micro(Loss(loss, {}), root_call=call, values=[float(loss.detach())])
            micro.evidence = examine(loss, call)
        return micro
