"""Steps that are read one step later: no healthy step waits for the device, and a bad one is known just as well.

    launch    the skip happens on the device: a fused optimizer takes the flag as `found_inf`, and what the forward pass
              wrote, averages and the loss scale are restored where it is 1. What the host must know is copied to
              pinned memory, behind an event
    arrive    one step later, before the next update: the values have arrived, and the weights are still those before
              the step. A bad step is run again (`late_again`) and then refused as if it were the present one

The first steps of a run are read at once, and so are those that follow a bad one until a step is applied, those whose
update must be checked, and the last one before a save.
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
from nantrap.guard.arrival import Arrival
from nantrap.guard.collect import Collector
from nantrap.guard.driver import OwnLoop
from nantrap.guard.late_again import Launched, refuse_launched
from nantrap.guard.outcome import Outcome
from nantrap.guard.refusal import contain
from nantrap.guard.session import Session
from nantrap.guard.state.certify import LARGEST_NORM
from nantrap.guard.state.rates import current_rates
from nantrap.guard.step import Scalars, is_skipped_spike, run_step
from nantrap.guard.torch_private import copy_parts, restore_where
from nantrap.guard.window import Reading, Window
from nantrap.incident import Action, Incident
from nantrap.locate.twoline.caller import keep_leaves

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
        """The same as it is at this moment."""
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
        self, session: Session, driver: OwnLoop, collector: Collector, *, average: Callable[[], Any] | None
    ) -> None:
        self._session, self._driver, self._collector = session, driver, collector
        self._average = average
        averaged = [t for module in session.protected.averages for t in (*module.parameters(), *module.buffers())]
        device = session.protected.members.parameters[0].device
        self._averaged = [tensor for tensor in averaged if tensor.device == device]
        self._counters = [tensor for tensor in averaged if tensor.device != device]  # those of steps, on the host
        self._averaged_before: list[Tensor] = []
        self._launched: Launched | None = None
        self._made = 0
        self._unreported: Incident | None = None
        self._last = Outcome(True, Action.APPLY, 0, math.nan, math.nan)
        session.recovery.settle = self.settle

    def step(self, window: Window) -> Outcome:
        """Judge the step that was launched before, then launch this one, or make it at once where it must be read."""
        norm = self._driver.norm()  # before anything: a step that is run again must meet gradients as they are
        action = self.settle()
        incident, self._unreported = self._unreported, None
        self._made += 1
        if action is Action.ROLLBACK:
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

    def settle(self) -> Action | None:
        """Read the step that was launched last, and record it. Returns what was done; `None` if none was launched."""
        launched, self._launched = self._launched, None
        if launched is None:
            return None
        values = launched.arrival.read()
        bad = not all(map(math.isfinite, values[: launched.judged]))
        values[0] /= launched.beyond
        reading = launched.scalars.reading(self._session, self._driver, launched.window, values, launched.rates)
        self._last = outcome = self._refuse(launched, reading) if bad else self._end(launched, reading)
        self._unreported = outcome.incident
        return outcome.action

    # ---- parts

    def _must_be_read(self, window: Window) -> bool:
        """Whether this step is read before its update."""
        session = self._session
        return (
            self._made <= _READ_AT_ONCE
            or session.ladder.in_a_row > 0
            or session.scaling.probes_in_a_row > 0
            or session.armed.on
            or bool(window.judged or window.dropped)
            or session.protected.needs_care(0.0)
        )

    def _launch(self, window: Window, norm: Tensor) -> None:
        """Make the step on the device, without reading anything of it."""
        session, driver, protected = self._session, self._driver, self._session.protected
        optimizer, scaler = protected.optimizer, driver.scaling.scaler if driver.scaling.enabled else None
        written = protected.ledger.suspects(known_only=True) if protected.has_buffers else []
        buffers = [plain for buffer in written if (plain := finite.readable(buffer)) is not None]
        scalars = Scalars.of(session, driver, window, norm, finite.largest_value(buffers) if buffers else None)
        joined = [scalar.detach() for scalar in scalars.tensors()]
        dtype = torch.float32 if all(scalar.dtype in _EXACT for scalar in joined) else torch.float64
        beyond = beyond_proofs(dtype) if driver.max_grad_norm is None else 1.0  # a clipped gradient is small
        joined[0] = joined[0].to(dtype) * beyond
        values = torch.stack([scalar.to(device=norm.device, dtype=dtype) for scalar in joined])
        judged = len(scalars.judged())
        bad = finite.flag_of(values[:judged])
        if driver.max_grad_norm is not None:
            finite.clip_with_norm(protected.members.parameters, max_norm=driver.max_grad_norm, total=norm)
        protected.ledger.restore_where(bad)
        schedule = None if protected.scheduler is None else Schedule(protected.scheduler, optimizer)
        rates, program = current_rates(optimizer), protected.program_at_begin
        scale = driver.scaling.capture()
        protected.update(lambda: _step_unless(optimizer, bad), careful=False)
        if scaler is not None:
            scaler.update()  # an overflow lowers the scale, as without the guard; a bad loss does not
            restore_where(finite.flag_of(values[1:judged]), driver.scaling.tensors(), [*scale.values()])
        if protected.scheduler is not None:
            protected.scheduler.step()
        counters = [(tensor, tensor.clone()) for tensor in self._counters]
        self._update_average(bad)
        protected.members.clear_gradients()
        self._launched = Launched(
            step=session.progress.step,
            window=window,
            scalars=scalars,
            judged=judged,
            arrival=Arrival.of(values),
            beyond=beyond,
            rates=rates,
            schedule=schedule,
            scale=scale,
            counters=counters,
            program=program,
            milliseconds=(time.perf_counter() - window.started) * 1e3,
            position=replace(session.progress),
            frames=keep_leaves() if window.micros[-1].forward is None else (),
        )
        for micro in window.micros:
            if micro.forward is not None:  # it can be computed again: its graph is not kept
                micro.loss.total = micro.loss.total.detach()

    def _update_average(self, bad: Tensor) -> None:
        """Average, and restore the averages where the step is bad."""
        if self._average is None:
            return
        if not self._averaged_before:
            self._averaged_before = [tensor.detach().clone() for tensor in self._averaged]
        copy_parts(self._averaged_before, self._averaged)
        self._average()
        restore_where(bad, self._averaged, self._averaged_before)

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
        with launched.at_its_position(session.progress):
            return session.recorder.end(launched.window, reading, launched=(launched.step, launched.milliseconds))

    def _refuse(self, launched: Launched, reading: Reading) -> Outcome:
        """The step was bad: it is refused now as it would have been then."""
        self._session.recovery.anchors.forget_newest(launched.step)
        return refuse_launched(self._session, self._driver, self._collector, launched, reading)

    def _abandon(self, window: Window, incident: Incident | None) -> Outcome:
        """The run went back to an older state: the gradients of this step are those of weights that are gone."""
        session = self._session
        contain(session, self._driver)
        reading = Reading(rates=current_rates(session.protected.optimizer), scale=self._driver.scaling.value())
        outcome = session.recorder.end(window, reading, Action.SKIP)
        return replace(outcome, incident=incident)


def _step_unless(optimizer: Any, bad: Tensor) -> Any:
    """The optimizer's step, which changes nothing where `bad` is 1."""
    optimizer.found_inf, optimizer.grad_scale = bad, None
    try:
        return optimizer.step()
    finally:
        del optimizer.found_inf, optimizer.grad_scale
