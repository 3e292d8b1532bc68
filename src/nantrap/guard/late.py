"""`Policy(sync="late")`: no host read at all in a healthy step.

The flag stays on the device. A fused optimizer takes it as `found_inf` and leaves parameters, state and step counter
alone where it is 1; written buffers are put back by `where`. The host reads it one step later, from a copy that has
arrived by then; a schedule that has advanced in the meantime is taken back before the next update. What it
costs: the failed graph is gone, so the incident says what was bad but not where it began, and nothing can be undone
on the host, so only updates that are provably finite (see `certify`) may be made this way.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from nantrap import finite
from nantrap.errors import NonFiniteError, UsageError
from nantrap.guard.diagnosed import Diagnosed
from nantrap.guard.diagnosis.describe import new_incident
from nantrap.guard.judge import Flags, Verdict, combine
from nantrap.guard.messages import stop_message
from nantrap.guard.outcome import Outcome
from nantrap.guard.session import Session
from nantrap.guard.state.certify import LARGEST_NORM, certify
from nantrap.guard.state.rates import current_rates
from nantrap.guard.torch_private import restore_parts
from nantrap.guard.window import NOTHING, Reading, Window
from nantrap.incident import Action, Finding

_CAPABLE = (torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.SGD)


@dataclass(slots=True)
class _Pending:
    step: int
    values: Tensor
    rates: tuple[float, ...]
    window: Window
    milliseconds: float
    schedule: _Schedule | None


class _Schedule:
    """A scheduler and what it wrote into the parameter groups, as before it advanced."""

    def __init__(self, scheduler: Any, optimizer: Optimizer) -> None:
        self._scheduler, self._optimizer = scheduler, optimizer
        self._state = copy.deepcopy(scheduler.state_dict())
        self._groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]

    def restore(self) -> None:
        self._scheduler.load_state_dict(self._state)
        for group, kept in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(kept)


class LateSteps:
    """Steps without reading. Holds the last step's values until they are read one step later.

    Args:
        session: of the run.
        max_grad_norm: clip to this total norm; `None` does not clip.
        average: updates the averaged weights, or `None`.
    """

    def __init__(self, session: Session, *, max_grad_norm: float | None, average: Callable[[], Any] | None) -> None:
        self._session = session
        self._max_grad_norm = max_grad_norm
        self._average = average
        self._pending: _Pending | None = None
        optimizer = session.protected.optimizer
        fused = all(group.get("fused") for group in optimizer.param_groups)
        momentum = any(group.get("momentum") for group in optimizer.param_groups)
        if type(optimizer) not in _CAPABLE or not fused or momentum:
            raise UsageError(
                f'Policy(sync="late") with {type(optimizer).__name__}: the skip happens inside the optimizer, which '
                "only Adam, AdamW, Adagrad and SGD without momentum support, and only with fused=True "
                "(fused SGD with momentum would read uninitialised memory after a skipped first step)"
            )
        if certify(optimizer) is None:
            raise UsageError(
                f'Policy(sync="late") with {type(optimizer).__name__}: its update cannot be proven finite beforehand '
                "(half precision parameters, a hook, a learning rate that is a tensor, or unusual constants), and late "
                'mode has no copy to undo it with; use sync="step"'
            )
        if average is not None and not session.protected.averages:
            raise UsageError(
                'Policy(sync="late") with an ema that is no module: it cannot be taken back on the device when a step '
                'turns out to be bad; use an AveragedModel or sync="step"'
            )
        if session.policy.on_incident != "skip":
            raise UsageError('Policy(sync="late") can only skip; use sync="step" to raise or to observe')

    def step(self, window: Window) -> Outcome:
        """Launch the step; report the result of the one before it."""
        reported = self.judge_last()
        session, protected = self._session, self._session.protected
        optimizer, scheduler = protected.optimizer, protected.scheduler
        norm = finite.gradient_norm(protected.members.gradients())
        losses = [micro.loss.total.detach().float() * micro.factor for micro in window.micros]
        loss = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
        limit = LARGEST_NORM if self._max_grad_norm is None else math.inf  # a clipped gradient is small
        origin = ~loss.isfinite()
        suspects = protected.ledger.suspects(known_only=True)
        if suspects:
            origin = origin | (finite.nonfinite_flag(suspects).to(origin.device) > 0)
        symptom = (~(norm.isfinite() & (norm <= limit))).to(origin.device)
        flags = session.ranks.gather_flags(origin, symptom)
        bad = flags.max()
        if self._max_grad_norm is not None:
            finite.clip_with_norm(protected.members.parameters, max_norm=self._max_grad_norm, total=norm)
        optimizer.found_inf, optimizer.grad_scale = bad, None  # type: ignore[attr-defined]
        try:
            optimizer.step()
        finally:
            del optimizer.found_inf, optimizer.grad_scale  # type: ignore[attr-defined]
        protected.ledger.keep_where(bad)
        rates = current_rates(optimizer)
        schedule = None
        if scheduler is not None:
            if session.policy.skips.scheduler == "hold":
                schedule = _Schedule(scheduler, optimizer)
            scheduler.step()
        self._update_average(bad)
        protected.members.clear_gradients()
        values = torch.cat([torch.stack([loss, norm.float().to(loss.device)]), flags.flatten().to(loss.device)])
        milliseconds = (time.perf_counter() - window.started) * 1e3
        step = session.progress.step
        self._pending = _Pending(step, values, rates, window, milliseconds, schedule)
        session.progress.step = step + 1
        session.recorder.tally.attempted += 1
        incident = reported.incident if reported is not None else None
        previous = (reported.loss, reported.grad_norm) if reported is not None else (math.nan, math.nan)
        return Outcome(True, Action.APPLY, step, *previous, incident)

    def judge_last(self) -> Outcome | None:
        """Read the step that was launched last, and record it."""
        pending, self._pending = self._pending, None
        if pending is None:
            return None
        session = self._session
        loss, norm, *flags = finite.read(list(pending.values.unbind()))
        members = session.ranks.members if len(flags) == 2 * session.ranks.size else (session.ranks.rank,)
        pairs = zip(members, flags[::2], flags[1::2], strict=True)
        verdict = combine({rank: Flags(origin=bool(origin), symptom=bool(bad)) for rank, origin, bad in pairs})
        reading = Reading(norm, loss, NOTHING, pending.rates)
        if not verdict.bad:
            session.ladder.applied()
            return session.recorder.end(pending.window, reading, launched=(pending.step, pending.milliseconds))
        action, reason = session.ladder.decide(
            pending.step, no_way_back=lambda: 'Policy(sync="late") keeps no older state'
        )
        if pending.schedule is not None:
            pending.schedule.restore()
        incident = session.recorder.finish(self._diagnosed(pending, reading, verdict), action, reason)
        launched = (pending.step, pending.milliseconds)
        outcome = session.recorder.end(pending.window, reading, action, incident, launched=launched)
        if action is Action.STOP:
            raise NonFiniteError(stop_message(incident, reason), incident=incident)
        return outcome

    def _update_average(self, bad: Tensor) -> None:
        """Average, and take it back on the device where the step was bad."""
        if self._average is None:
            return
        modules = self._session.protected.averages
        tensors = [t for module in modules for t in (*module.parameters(), *module.buffers())]
        before = [tensor.detach().clone() for tensor in tensors]
        self._average()
        restore_parts(
            tensors, [torch.where(bad.to(t.device) > 0, kept, t) for t, kept in zip(tensors, before, strict=True)]
        )

    def _diagnosed(self, pending: _Pending, reading: Reading, verdict: Verdict) -> Diagnosed:
        """The incident of a step that is read when the next one has begun: what was seen, and no place."""
        findings = []
        if not math.isfinite(reading.loss):
            findings.append(Finding("loss", "loss", "forward", value=reading.loss))
        if not math.isfinite(reading.norm):
            findings.append(Finding("grad_norm", "total gradient norm", "backward", value=reading.norm))
        forward = not math.isfinite(reading.loss) or math.isfinite(reading.norm)
        incident = new_incident(self._session, "forward" if forward else "backward", verdict=verdict)
        note = 'read one step late (Policy(sync="late")): the graph is gone, so it was not located'
        incident = replace(incident, step=pending.step, lr=pending.rates, findings=tuple(findings), notes=(note,))
        return Diagnosed(replace(incident, loss=reading.loss, grad_norm=reading.norm))
