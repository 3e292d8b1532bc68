"""Bad micro-batches that never become a step: the script skips them, trains on another loss, or they are left out.

Each is an incident like any other: contained, diagnosed and recorded. What differs is who decided, and that only this
rank knows of it.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

from torch import Tensor

from nantrap import finite
from nantrap.guard.collect import Collector
from nantrap.guard.drafts import Draft
from nantrap.guard.driver import Driver
from nantrap.guard.judge import Verdict
from nantrap.guard.known import bad_batch
from nantrap.guard.loss import Loss
from nantrap.guard.micro_batches import drop
from nantrap.guard.observation import Observation, observe
from nantrap.guard.parts import Parts
from nantrap.guard.reading import Reading
from nantrap.guard.recorder import DEAD_AFTER
from nantrap.guard.state.rates import current_rates
from nantrap.guard.window import Micro, Window
from nantrap.incident import Action, Incident
from nantrap.launch.shared import Activity
from nantrap.locate.autopsy import examine
from nantrap.locate.location import finding

_MOST_PRINTED = 5
"""Steps in a row that a script does not make and that are printed; of more of them only those that look new."""


class GivenUp:
    """Records what takes no part in a step of the script. Holds how many steps in a row the script did not make.

    Args:
        parts: the collaborators of a step.
        driver: of the script's loop.
        collector: of the script's loop.
        activity: says that the guard is at work meanwhile.
    """

    def __init__(self, parts: Parts, driver: Driver, collector: Collector, activity: Activity) -> None:
        self._parts = parts
        self._driver = driver
        self._collector = collector
        self._activity = activity
        self._observes = parts.policy.on_incident == "observe"
        self._in_a_row = 0
        self._applied_before = 0

    def is_bad(self, window: Window) -> bool:
        """Whether a step that the script gives up was bad: its loss, or its gradients as they are now."""
        if any(micro.bad for micro in window.micros):
            return True
        return not math.isfinite(finite.read([self._driver.norm()])[0])

    def step(self, window: Window, words: str) -> None:
        """A bad step that the script itself does not make: contained, diagnosed and recorded like any other."""
        parts, protected = self._parts, self._parts.protected
        self._activity.busy = True
        try:
            micro = next((micro for micro in window.micros if micro.bad), window.micros[-1])
            norm = math.nan if window.without_gradient else finite.read([self._driver.norm()])[0]
            bad_buffers = bool(protected.buffers.names_of_bad())
            seen_norm = 0.0 if window.without_gradient else norm
            observation = self._observed(micro, seen_norm, buffers_bad=bad_buffers)
            if not self._observes:
                protected.restore()
            draft = parts.diagnosis.draft(observation)
            if not self._observes:
                protected.restore()
            draft.incident = replace(draft.incident, notes=(words, *draft.incident.notes))
            window.given_up = True
            loss = micro.values[0] if micro.values else math.nan
            reading = Reading(norm, loss, rates=current_rates(protected.optimizer))
            restored = None if self._observes else protected.verify()
            incident = self._finish(draft, words, restored=restored)
            parts.recorder.end(window, reading, Action.SKIP, incident)
        finally:
            self._activity.busy = False
            self._collector.end()

    def data(self, tensor: Tensor, name: str, indices: tuple[int, ...]) -> None:
        """A bad batch that the script left out before it called the model: nothing is run again, it was never used."""
        parts = self._parts
        words = "the script left this batch out before it called the model"
        self._activity.busy = True
        try:
            draft = bad_batch(parts, [finding("batch", name, tensor, "data")])
            samples = draft.incident.samples
            own = tuple(indices[sample] for sample in samples) if samples and max(samples) < len(indices) else ()
            draft.incident = replace(draft.incident, dataset_indices=own, notes=(words, *draft.incident.notes))
            window = Window(time.perf_counter(), whole=True, given_up=True, without_gradient=True)
            reading = Reading(math.nan, math.nan, rates=current_rates(parts.protected.optimizer))
            incident = self._finish(draft, words)
            parts.recorder.end(window, reading, Action.SKIP, incident)
        finally:
            self._activity.busy = False

    def notes(self) -> list[str]:
        """What the summary says of a run that ended with many steps that the script did not make."""
        count = self._in_a_row if self._applied_before == self._parts.recorder.tally.applied else 0
        if count < DEAD_AFTER:
            return []
        return [f"the script made none of the last {count:,} steps: nothing was learned (NT505 dead_training)"]

    def _finish(self, draft: Draft, words: str, *, restored: list[str] | None = None) -> Incident:
        """The final incident of a step that the script does not make.

        Of many in a row the first few are printed, then those that look new; a long row is called a dead run.
        """
        recorder, step = self._parts.recorder, self._parts.progress.step
        tally = recorder.tally
        tally.given_up += 1
        self._in_a_row = self._in_a_row + 1 if tally.applied == self._applied_before else 1
        self._applied_before = tally.applied
        count = self._in_a_row
        incident = recorder.finish(draft, Action.SKIP, words, restored=restored, is_one_of_many=count > _MOST_PRINTED)
        if count == _MOST_PRINTED:
            recorder.say(f"step {step:,}: the script made none of the last {count} steps; more are only counted")
        elif count == DEAD_AFTER:
            recorder.say(
                f"step {step:,}: the script has made none of the {count} steps since step {step - count + 1:,}: "
                "nothing is learned (NT505 dead_training)"
            )
        return incident

    def loss(self, window: Window, micro: Micro, loss: Tensor) -> None:
        """The script trains on another loss than the bad one it tested, such as that of the other heads."""
        parts = self._parts
        self._activity.busy = True
        try:
            bad = Micro(Loss(loss, {}), root_call=micro.root_call, values=[float(loss.detach())])
            bad.evidence = examine(loss, micro.root_call)
            with parts.protected.kept():  # the step goes on with what its forward pass wrote
                draft = parts.diagnosis.draft(self._observed(bad))
            window.drafts.append((draft, "the script left this non-finite loss out and trained on another one"))
            window.bad_left_out += 1
        finally:
            self._activity.busy = False

    def cleared(self, window: Window) -> None:
        """A loss of this step is not finite, but every gradient is: the script cleared them by hand and went on.

        Loops with a separate copy of the weights do that; no `zero_grad` of the optimizer or the model shows it.
        """
        bad = [micro for micro in window.micros if micro.bad]
        if not bad or window.micros[-1].bad or not math.isfinite(finite.read([self._driver.norm()])[0]):
            return
        parts = self._parts
        with self._activity.of_guard():
            with parts.protected.kept():
                draft = parts.diagnosis.draft(self._observed(bad[-1]))
            words = "an earlier loss of this step is not finite, and its gradients are not in the step"
            window.drafts.append((draft, words))
            window.micros[:] = [micro for micro in window.micros if not micro.bad]
            window.bad_left_out += 1

    def gradients(self, window: Window) -> Observation:
        """What is bad in the gradients of a step as they are now, with the micro-batch whose loss is bad, if any is."""
        micro = next((micro for micro in window.micros if micro.bad), window.micros[-1])
        return self._observed(micro, finite.read([self._driver.norm()])[0])

    def repaired(self, window: Window) -> None:
        """The script tested a bad gradient and makes the step all the same. If all are finite now, it changed them."""
        observation, window.bad_before_repair = window.bad_before_repair, None
        parts = self._parts
        self._activity.busy = True
        try:
            if not math.isfinite(finite.read([self._driver.norm()])[0]):
                return  # not repaired: the step itself is judged, and refused
            with parts.protected.kept():
                draft = parts.diagnosis.draft(observation)
            window.drafts.append(
                (draft, "the script changed its non-finite gradients to finite ones and made the step")
            )
            window.micros[:] = [micro for micro in window.micros if not micro.bad]
            window.bad_left_out += 1
        finally:
            self._activity.busy = False

    def value(self, window: Window, words: str) -> None:
        """A value that no optimizer makes a step from is not finite: diagnosed and recorded, nothing is prevented."""
        parts = self._parts
        (micro,) = window.micros
        self._activity.busy = True
        try:
            with parts.protected.kept():
                draft = parts.diagnosis.draft(self._observed(micro))
            reading = Reading(math.nan, micro.values[0] if micro.values else math.nan)
            incident = parts.recorder.finish(draft, Action.APPLY, words)
            parts.recorder.end(window, reading, Action.APPLY, incident)
        finally:
            self._activity.busy = False
            self._collector.end()

    def micro_batch(self, window: Window, micro: Micro, words: str = "left out") -> None:
        """A bad micro-batch takes no part in the step; its backward pass is not run."""
        number = len(window.micros) + window.dropped + 1
        parts = self._parts
        self._activity.busy = True
        try:
            draft = parts.diagnosis.draft(self._observed(micro))
            drop(parts, window, draft, f"micro-batch {number} {words}, the others stay")
            parts.protected.buffers.restore_mark()
        finally:
            self._activity.busy = False

    def buffers(self) -> None:
        """A forward pass that led nowhere has written NaN into buffers: they are put back as before it."""
        buffers = self._parts.protected.buffers
        if not self._collector.begun or not buffers or not finite.any_nonfinite(buffers.suspects()):
            return
        bad = [name for name, _ in buffers.names_of_bad()]
        if bad and not self._observes:
            buffers.restore(uncounted=True)
            others = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            self._parts.recorder.say(
                f"step {self._parts.progress.step:,}: a forward pass that was not trained on left non-finite values in "
                f"buffer {bad[0]}{others}; they were restored"
            )

    def _observed(self, micro: Micro, norm: float = 0.0, *, buffers_bad: bool = False) -> Observation:
        """What was seen of a bad micro-batch that this rank alone knows of."""
        parts = self._parts
        verdict = Verdict(bad=True, harmful=True, bad_ranks=(parts.ranks.rank,))
        return observe(parts.protected, micro, norm, verdict=verdict, buffers_bad=buffers_bad, copy_gradients=True)
