"""Steps that are read one step later: no healthy step waits for the device, and a bad one is known just as well.

    launch    the skip happens on the device: a fused optimizer takes the flag as `found_inf`, and what the forward pass
              wrote, averages and the loss scale are restored where it is 1. What the host must know is copied to
              pinned memory, behind an event
    between   a script updates its scaler, its schedule and its average itself: each call is made, and what it changed
              is restored on the device or noted
    arrive    one step later, before the next update: the values have arrived, and the weights are still those before
              the step. A bad step is run again (`late_again`) and then refused as if it were the present one

The first steps of a run are read at once, and so are those that follow a bad one until a step is applied, those whose
update must be checked, and the last one before a save.

Ranks that average gradients join their flags on the device, by one reduction of three numbers, so that all of them skip
the same steps. What only the host knows travels with it: that an update must be checked. All ranks read the next step
at once then, whichever of them it was. They judge together, so a bad step waits for the next step of all of them.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from nantrap import finite
from nantrap.guard.collect import Collector
from nantrap.guard.driver import Driver
from nantrap.guard.late_again import Launched, refuse_launched
from nantrap.guard.refusal import contain
from nantrap.guard.session import Session
from nantrap.guard.state.certify import LARGEST_NORM
from nantrap.guard.state.members import current_rates
from nantrap.guard.step import Scalars, is_skipped_spike, run_step
from nantrap.guard.sync import Arrival
from nantrap.guard.torch_private import copy_parts, restore_where
from nantrap.guard.window import Outcome, Reading, Window
from nantrap.incident import Action, Incident

_READ_AT_ONCE = 8
"""Number of first steps that are read at once: most failures are there, and the ledger learns who writes what."""
_EXACT = frozenset({torch.float16, torch.bfloat16, torch.float32})


def beyond_proofs(dtype: torch.dtype) -> float:
    """A norm times this overflows where the proofs end (`certify`). A power of two, so no bit of the norm is lost."""
    return 2.0 ** math.ceil(math.log2(torch.finfo(dtype).max / LARGEST_NORM))


class Schedule:
    """A scheduler and what it wrote into the parameter groups, as before it advanced."""

    def __init__(self, scheduler: Any, optimizer: Optimizer) -> None:
        self._scheduler, self._optimizer = scheduler, optimizer
        self._state = copy.deepcopy(scheduler.state_dict())
        self._groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]

    def now(self) -> Schedule:
        """Takes the schedule as it is at this moment."""
        return Schedule(self._scheduler, self._optimizer)

    def restore(self) -> None:
        """The rates of before."""
        self._scheduler.load_state_dict(self._state)
        for group, kept in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(kept)


class LateSteps:
    """Makes the steps of a guard whose results are read late. Holds the step that was launched and not read yet.

    Args:
        session: of the run.
        driver: who makes the update.
        collector: what was seen of the present step.
        average: updates the averaged weights, or `None`.
    """

    def __init__(
        self,
        session: Session,
        driver: Driver,
        collector: Collector,
        *,
        average: Callable[[], Any] | None = None,
    ) -> None:
        self._session, self._driver, self._collector = session, driver, collector
        self._average = average
        self._device = session.protected.members.parameters[0].device
        self._averages_before: dict[int, list[Tensor]] = {}
        self._launched: Launched | None = None
        self._made = 0
        self._stale = False
        self._unreported: Incident | None = None
        self._last = Outcome(True, Action.APPLY, 0, math.nan, math.nan)
        session.recovery.settle = self.settle

    def step(self, window: Window) -> Outcome:
        """Judge the step that was launched before, then launch this one, or make it at once where it must be read."""
        norm = self._driver.norm()  # before anything: a step that is run again must meet gradients as they are
        self.settle()
        incident, self._unreported = self._unreported, None
        if self._stale:
            self._stale = False
            return self._abandon(window, incident)
        if self._must_be_read(window):
            self._driver.known = norm
            self._last = outcome = run_step(self._session, self._driver, window)
            return replace(outcome, incident=incident) if outcome.incident is None and incident else outcome
        self._launch(window, norm)
        step, last = self._session.progress.step, self._last
        self._session.progress.step = step + 1
        self._session.recorder.tally.attempted += 1
        return Outcome(True, Action.APPLY, step, last.loss, last.grad_norm, incident, last.terms, last.loss_step)

    def settle(self, *, at_end: bool = False) -> None:
        """Read the step that was launched last, and record it.

        Args:
            at_end: no step follows, in which other ranks could take part.
        """
        launched, ranks = self._launched, self._session.ranks
        if launched is None:
            return
        values = launched.arrival.read()
        bad = not all(map(math.isfinite, values[: len(launched.scalars.judged)]))
        if launched.together:
            *values, norm_bad, own_bad, careful = values
            bad, ranks.careful = bool(norm_bad or own_bad), bool(careful)
            if bad and not (ranks.talking or at_end):
                return  # all ranks refuse it together, in their next step
        self._launched = None
        values[0] /= launched.beyond
        reading = launched.scalars.reading(self._session, self._driver, launched.window, values, launched.rates)
        self._last = outcome = self._refuse(launched, reading) if bad else self._end(launched, reading)
        self._unreported = outcome.incident
        present = self._collector.window
        if outcome.action is Action.ROLLBACK:  # the gradients of the present step are those of weights that are gone
            self._stale = self._collector.begun and present is not launched.window

    # ---- what a script does itself while its step was not read yet

    @property
    def is_waiting(self) -> bool:
        """Whether a step was launched and not read yet."""
        return self._launched is not None

    def scales_by(self, scaler: Any) -> bool:
        """Whether the step that was launched used this scaler."""
        return self._launched is not None and self._driver.scaling.scaler is scaler

    def update_scale(self, update: Callable[[], Any]) -> None:
        """Update the loss scale. An overflow lowers it, as without the guard; a bad loss does not."""
        update()
        launched = self._launched
        if launched is not None and launched.spares_scale is not None and launched.scale:
            restore_where(launched.spares_scale, self._driver.scaling.tensors(), [*launched.scale.values()])

    def move_schedule(self, schedule: Any) -> None:
        """A schedule is about to advance: keep it as it is."""
        if self._launched is not None:
            self._launched.schedules.append(Schedule(schedule, self._session.protected.optimizer))

    def average(self, averages: Any, update: Callable[[], Any]) -> None:
        """Update averaged weights, and restore them where the step is bad.

        Args:
            averages: the module that holds them, or several.
            update: the call itself.
        """
        launched = self._launched
        assert launched is not None
        modules = averages if isinstance(averages, list) else [averages]
        tensors = [t for module in modules for t in (*module.parameters(), *module.buffers())]
        averaged = [tensor for tensor in tensors if tensor.device == self._device]
        # those of steps are counted on the host
        launched.counters.extend((t, t.clone()) for t in tensors if t.device != self._device)
        before = self._averages_before.get(id(averages))
        if before is None or len(before) != len(averaged):
            before = self._averages_before[id(averages)] = [tensor.detach().clone() for tensor in averaged]
        copy_parts(before, averaged)
        update()
        restore_where(launched.bad, averaged, before)

    # ---- parts

    def _must_be_read(self, window: Window) -> bool:
        """Whether this step is read before its update. Ranks that train together get the same answer."""
        session = self._session
        ranks = session.ranks
        if ranks.together and not ranks.talking:
            return True
        self._made += 1
        return (
            self._made <= _READ_AT_ONCE
            or session.ladder.in_a_row > 0
            or session.scaling.probes_in_a_row > 0
            or session.scaling.would_leave_memory_uninitialised()
            or session.takes_turns
            or (ranks.careful if ranks.together else self._is_read_here(window))
        )

    def _is_read_here(self, window: Window) -> bool:
        """Whether something that only this rank knows asks for it."""
        session = self._session
        return session.armed.on or bool(window.judged or window.dropped) or session.protected.needs_care(0.0)

    def _launch(self, window: Window, norm: Tensor) -> None:
        """Make the step on the device, without reading anything of it."""
        session, driver, protected = self._session, self._driver, self._session.protected
        optimizer = protected.optimizer
        written = protected.ledger.suspects(known_only=True) if protected.has_buffers else []
        buffers = [plain for buffer in written if (plain := finite.readable(buffer)) is not None]
        scalars = Scalars.of(session, driver, window, norm, finite.largest_value(buffers) if buffers else None)
        joined = [scalar.detach() for scalar in scalars.tensors()]
        dtype = torch.float32 if all(scalar.dtype in _EXACT for scalar in joined) else torch.float64
        small = driver.limit is not None and driver.limit <= LARGEST_NORM
        beyond = 1.0 if small else beyond_proofs(dtype)
        if beyond != 1.0:
            joined[0] = joined[0].to(dtype) * beyond
        judged = len(scalars.judged)
        zeros = [finite.constant(0.0, norm.device)[0]] * 2  # the flags: joined with what is sent, they cost no kernel
        values = torch.stack([scalar.to(device=norm.device, dtype=dtype) for scalar in (*joined, *zeros)])
        together = session.ranks.talking
        scaled = driver.scaling.enabled and judged > 1
        if together:
            flags = self._joined_flags(values, judged, careful=self._is_read_here(window))
            values, bad = torch.cat((values, flags.to(dtype))), flags[:2].amax()
            spares_scale = flags[1] if scaled else None
        else:
            one, other = (values[-2:-1], values[-1:]) if dtype is torch.float32 else (None, None)
            bad = finite.flag_of(values[:judged], one)
            spares_scale = finite.flag_of(values[1:judged], other) if scaled else None
        driver.clip_unread(norm)
        protected.ledger.restore_where(bad)
        self._launched = launched = Launched(
            window=window,
            scalars=scalars,
            arrival=Arrival.of(values),
            bad=bad,
            spares_scale=spares_scale,
            together=together,
            beyond=beyond,
            rates=current_rates(optimizer),
            scale=driver.scaling.capture(),
            program=protected.program_at_begin,
            milliseconds=(time.perf_counter() - window.started) * 1e3,
            position=replace(session.progress),
        )
        session.progress.cleaned = 0
        protected.update(lambda: self._update_unless(bad), careful=False)
        if driver.advances:
            self._advance(launched)
        for micro in window.micros:
            if micro.forward is not None:  # it can be computed again: its graph is not kept
                micro.loss.total = micro.loss.total.detach()

    def _joined_flags(self, values: Tensor, judged: int, *, careful: bool) -> Tensor:
        """On the device: is the norm bad, is a loss or a buffer bad on any rank, must any rank check its update."""
        own = finite.flag_of(values[1:judged]) if judged > 1 else values.new_zeros((), dtype=torch.float32)
        asks = torch.full((), float(careful), device=values.device)
        return self._session.ranks.join(torch.stack((finite.flag_of(values[:1]), own, asks)))

    def _update_unless(self, bad: Tensor) -> Any:
        """The optimizer's step, which changes nothing where `bad` is 1."""
        optimizer: Any = self._session.protected.optimizer
        if self._driver.scaling.enabled and not self._driver.advances:
            return self._scaled_update(optimizer, bad)
        optimizer.found_inf, optimizer.grad_scale = bad, None
        try:
            return optimizer.step() if self._driver.advances else self._driver.take_update()
        finally:
            del optimizer.found_inf, optimizer.grad_scale

    def _scaled_update(self, optimizer: Any, bad: Tensor) -> Any:
        """The script's own `scaler.step(optimizer)`, which tells the optimizer the scale, and what is not finite."""

        def add_flag(*_: Any) -> None:
            optimizer.found_inf = torch.maximum(optimizer.found_inf.reshape(()), bad)

        handle = optimizer.register_step_pre_hook(add_flag)
        try:
            return self._driver.take_update()
        finally:
            handle.remove()

    def _advance(self, launched: Launched) -> None:
        """What a script does itself: scaler, schedule, averages, and the next step begins without gradients."""
        protected, scaling = self._session.protected, self._driver.scaling
        if scaling.enabled:
            self.update_scale(scaling.scaler.update)
        if protected.scheduler is not None:
            self.move_schedule(protected.scheduler)
            protected.scheduler.step()
        if self._average is not None:
            self.average(protected.averages, self._average)
        protected.members.clear_gradients()

    def _end(self, launched: Launched, reading: Reading) -> Outcome:
        """The step was good: what `accept` does, one step later."""
        session = self._session
        session.scaling.probes_in_a_row = 0
        if session.ladder.in_a_row:
            session.ladder.applied()
        if reading.norm == 0.0 or session.recorder.tally.steps_without_gradient:
            session.recorder.note_gradient(missing=reading.norm == 0.0)
        spikes = session.spikes
        if spikes is not None:
            if reading.loss > spikes.loss_limit or reading.norm > spikes.norm_limit:
                is_skipped_spike(session, reading)
            spikes.fresh.append((reading.loss, reading.norm))
            if len(spikes.fresh) >= spikes.block:
                spikes.absorb()
        return session.recorder.end(launched.window, reading, launched=(launched.position, launched.milliseconds))

    def _refuse(self, launched: Launched, reading: Reading) -> Outcome:
        """The step was bad: it is refused now as it would have been then."""
        self._session.recovery.anchors.forget_newest(launched.position.step)
        return refuse_launched(self._session, self._driver, self._collector, launched, reading)

    def _abandon(self, window: Window, incident: Incident | None) -> Outcome:
        """The run went back to an older state: the gradients of this step are those of weights that are gone."""
        session = self._session
        contain(session, self._driver)
        reading = Reading(rates=current_rates(session.protected.optimizer), scale=self._driver.scaling.value())
        outcome = session.recorder.end(window, reading, Action.SKIP)
        return replace(outcome, incident=incident)
