"""Incidents of what a script did by itself: each is contained, diagnosed and recorded like any other.

What differs from a step that the guard refuses is who decided, and that only this rank knows of it.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

from nantrap import finite
from nantrap.guard.collect import Collector
from nantrap.guard.diagnosed import Diagnosed
from nantrap.guard.diagnosis.diagnose import diagnose
from nantrap.guard.driver import Driver
from nantrap.guard.judge import Verdict
from nantrap.guard.known import bad_batch
from nantrap.guard.micro_batches import drop
from nantrap.guard.observation import Observation, observe
from nantrap.guard.reading import Reading
from nantrap.guard.session import Session
from nantrap.guard.state.rates import current_rates
from nantrap.guard.window import Micro, Window
from nantrap.incident import Action
from nantrap.launch.events import MOST_PRINTED, EventKind, EventTable, ScriptEvent
from nantrap.launch.shared import Activity, BadData
from nantrap.locate.location import finding

_BATCH_LEFT_OUT = "the script left this batch out before it called the model"


class EventRecorder:
    """Records the events of a script that have a non-finite value, and counts them.

    Args:
        session: of the run.
        driver: of the script's loop.
        collector: of the script's loop.
        activity: says that the guard is at work meanwhile.
        events: the table in which they are counted.
    """

    def __init__(
        self, session: Session, driver: Driver, collector: Collector, activity: Activity, events: EventTable
    ) -> None:
        self._session = session
        self._driver = driver
        self._collector = collector
        self._activity = activity
        self._events = events
        self._observes = session.policy.on_incident == "observe"

    def skip_step(self, window: Window, words: str) -> None:
        """Record a bad step that the script does not make: everything is restored, and the step counts as skipped."""
        session, protected = self._session, self._session.protected
        micro = next((micro for micro in window.micros if micro.bad), window.micros[-1])
        with self._activity.of_guard():
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
            finally:
                self._collector.end()

    def skip_batch(self, data: BadData) -> None:
        """Record a bad batch that the script left out before it called the model: nothing is run again."""
        indices = data.batch.indices
        with self._activity.of_guard():
            diagnosed = bad_batch(self._session, [finding("batch", data.name, data.tensor, "data")])
            samples = diagnosed.incident.samples
            own = tuple(indices[sample] for sample in samples) if samples and max(samples) < len(indices) else ()
            diagnosed = diagnosed.with_incident(replace(diagnosed.incident, dataset_indices=own))
            window = Window(time.perf_counter(), whole=True, without_gradient=True)
            self._end_skipped(diagnosed, window, _BATCH_LEFT_OUT)

    def leave_out(self, window: Window, observation: Observation, words: str) -> None:
        """Record something bad that has no part in a step which the script makes."""
        with (
            self._activity.of_guard(),
            self._session.protected.ledger.kept(),
        ):  # the step goes on with what its forward wrote
            diagnosed = diagnose(self._session, observation)
        window.diagnosed.append((diagnosed, words))
        window.bad_left_out += 1
        self._events.note(self._event(EventKind.LEFT_OUT, words))

    def drop_micro_batch(self, window: Window, micro: Micro, *, by_script: bool) -> None:
        """Record a bad micro-batch that has no part in the step; its backward pass is not run."""
        number = len(window.micros) + window.dropped + 1
        words = f"micro-batch {number} left out{' by the script' if by_script else ''}, the others stay"
        session = self._session
        with self._activity.of_guard():
            diagnosed = diagnose(session, self.observe(micro))
            drop(session, window, diagnosed, words)
            session.protected.ledger.restore_mark()
        if by_script:
            self._events.note(self._event(EventKind.MICRO_BATCH_LEFT_OUT, words))

    def report_value(self, window: Window, words: str) -> None:
        """Record a value that is not finite and that no optimizer makes a step from: nothing is prevented."""
        session = self._session
        (micro,) = window.micros
        with self._activity.of_guard():
            try:
                with session.protected.ledger.kept():
                    diagnosed = diagnose(session, self.observe(micro))
                reading = Reading(math.nan, micro.values[0] if micro.values else math.nan)
                incident = session.recorder.finish(diagnosed, Action.APPLY, words)
                session.recorder.end(window, reading, Action.APPLY, incident)
            finally:
                self._collector.end()
        self._events.note(self._event(EventKind.VALUE_USED, words))

    def observe(self, micro: Micro, norm: float = 0.0, *, buffers_bad: bool = False) -> Observation:
        """Note what is bad in a micro-batch that this rank alone knows of."""
        session = self._session
        verdict = Verdict(bad=True, harmful=True, bad_ranks=(session.ranks.rank,))
        with self._activity.of_guard():
            return observe(
                session.protected, micro, norm, verdict=verdict, buffers_bad=buffers_bad, copy_gradients=True
            )

    def read_norm(self) -> float:
        """Read the norm of the gradients as they are now."""
        with self._activity.of_guard():
            return finite.read([self._driver.norm()])[0]

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
        """End a step that the script does not make.

        Of many in a row the first few are printed, then those that look new.
        """
        recorder = self._session.recorder
        recorder.tally.given_up += 1
        event = self._event(EventKind.STEP_NOT_MADE, words)
        is_one_of_many = self._events.add(event) > MOST_PRINTED
        diagnosed = diagnosed.noting_first(words)
        incident = recorder.finish(diagnosed, Action.SKIP, words, restored=restored, is_one_of_many=is_one_of_many)
        self._events.announce(event)
        window.given_up = True
        reading = Reading(norm, loss, rates=current_rates(self._session.protected.optimizer))
        recorder.end(window, reading, Action.SKIP, incident)
