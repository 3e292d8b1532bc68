"""`Policy(sync="late")`: no host read at all in a healthy step.

The flag stays on the device. A fused optimizer takes it as `found_inf` and leaves parameters, state and step counter
alone where it is 1; written buffers are put back by `where`. The host learns of it one step later, from a copy that
has long arrived by then; a schedule that has advanced in the meantime is taken back before the next update. What it
costs: the failed graph is gone, so the incident says what was bad but not where it began, and nothing can be undone
on the host, so only updates that are provably finite (see `certify`) may be made this way.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nantrap import finite
from nantrap.errors import NonFiniteError, UsageError
from nantrap.guard.certify import norm_bound, update_is_provably_finite
from nantrap.guard.console import stop_message
from nantrap.guard.outcome import Outcome
from nantrap.guard.ranks import guilty_ranks
from nantrap.guard.rates import current_rates
from nantrap.incident import Action, Finding, Incident

if TYPE_CHECKING:
    from nantrap.guard.guard import Guard
    from nantrap.guard.window import Window

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

    def __init__(self, scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
        self._scheduler, self._optimizer = scheduler, optimizer
        self._state = copy.deepcopy(scheduler.state_dict())
        self._groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]

    def restore(self) -> None:
        self._scheduler.load_state_dict(self._state)
        for group, kept in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(kept)


class LateSteps:
    """Steps without reading. Holds the last step's values until they are read one step later."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._pending: _Pending | None = None
        optimizer = guard.optimizer
        fused = all(group.get("fused") for group in optimizer.param_groups)
        momentum = any(group.get("momentum") for group in optimizer.param_groups)
        if type(optimizer) not in _CAPABLE or not fused or momentum:
            raise UsageError(
                f'Policy(sync="late") with {type(optimizer).__name__}: the skip happens inside the optimizer, which '
                "only Adam, AdamW, Adagrad and SGD without momentum can, and only with fused=True "
                "(fused SGD with momentum would read uninitialised memory after a skipped first step)"
            )
        if not update_is_provably_finite(optimizer):
            raise UsageError(
                f'Policy(sync="late") with {type(optimizer).__name__}: its update cannot be proven finite beforehand '
                "(half precision parameters, a hook, a rate that is a tensor, or unusual constants), and late mode has "
                'no copy to undo it with; use sync="step"'
            )
        if guard._ema_update is not None and not guard._ema_modules:
            raise UsageError(
                'Policy(sync="late") with an ema that is no module: it cannot be taken back on the device when a step '
                'turns out to be bad; use an AveragedModel or sync="step"'
            )
        if guard.policy.on_incident != "skip":
            raise UsageError('Policy(sync="late") can only skip; use sync="step" to raise or to observe')

    def step(self, window: Window) -> Outcome:
        """Launch the step; report what the one before it turned out to be."""
        guard = self._guard
        reported = self.settle()
        norm = finite.gradient_norm(guard._members.gradients())
        losses = [micro.loss.total.detach().float() * micro.factor for micro in window.micros]
        loss = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
        limit = norm_bound() if guard._max_grad_norm is None else math.inf  # a clipped gradient is small
        origin = ~loss.isfinite()
        suspects = guard._buffers.suspects(known_only=True)
        if suspects:
            origin = origin | (finite.nonfinite_flag(suspects).to(origin.device) > 0)
        symptom = (~(norm.isfinite() & (norm <= limit))).to(origin.device)
        flags = guard._agreement.reduce_flags(origin, symptom)
        bad = flags.max()
        if guard._max_grad_norm is not None:
            finite.clip_with_norm(guard._members.parameters, max_norm=guard._max_grad_norm, total=norm)
        optimizer = guard.optimizer
        optimizer.found_inf, optimizer.grad_scale = bad, None  # type: ignore[attr-defined]
        try:
            optimizer.step()
        finally:
            del optimizer.found_inf, optimizer.grad_scale  # type: ignore[attr-defined]
        guard._buffers.keep_where(bad)
        rates = current_rates(optimizer)
        schedule = None
        if guard.scheduler is not None:
            if guard.policy.scheduler_on_skip == "hold":
                schedule = _Schedule(guard.scheduler, optimizer)
            guard.scheduler.step()
        self._update_average(bad)
        guard._members.clear_gradients()
        values = torch.cat([torch.stack([loss, norm.float().to(loss.device)]), flags.flatten().to(loss.device)])
        milliseconds = (time.perf_counter() - window.started) * 1e3
        self._pending = _Pending(guard._step, values, rates, window, milliseconds, schedule)
        step = guard._step
        guard._step += 1
        guard.tally.attempted += 1
        incident = reported.incident if reported is not None else None
        previous = (reported.loss, reported.grad_norm) if reported is not None else (math.nan, math.nan)
        return Outcome(True, Action.APPLY, step, *previous, incident)

    def _update_average(self, bad: Tensor) -> None:
        """Average, and take it back on the device where the step was bad."""
        guard = self._guard
        if guard._ema_update is None:
            return
        tensors = [t for module in guard._ema_modules for t in (*module.parameters(), *module.buffers())]
        before = [tensor.detach().clone() for tensor in tensors]
        guard._ema_update()
        with torch.no_grad():
            for tensor, kept in zip(tensors, before, strict=True):
                tensor.copy_(torch.where(bad.to(tensor.device) > 0, kept, tensor))

    def settle(self) -> Outcome | None:
        """Read the step that was launched last, and record it."""
        pending, self._pending = self._pending, None
        if pending is None:
            return None
        guard = self._guard
        loss, norm, *flags = finite.read(list(pending.values.unbind()))
        half = len(flags) // 2
        guilty = guilty_ranks([flags[:half], flags[half:]])
        action = Action.APPLY
        incident: Incident | None = None
        reason = ""
        if guilty:
            why = 'Policy(sync="late") keeps no older state'
            action, reason = guard._ladder.decide(pending.step, no_way_back=why)
            incident = self._incident(pending, loss, norm, action, guilty[0])
            if pending.schedule is not None:
                pending.schedule.restore()
            guard._ledger.count(incident)
            guard._console.incident(incident, reason)
        else:
            guard._ladder.applied()
            guard.tally.applied += 1
        pending.window.loss = loss
        guard._ledger.write(
            pending.step, pending.window, action, norm, {}, pending.rates, pending.milliseconds, incident
        )
        if action is Action.STOP and incident is not None:
            raise NonFiniteError(stop_message(incident, reason), incident=incident)
        return Outcome(not guilty, action, pending.step, loss, norm, incident)

    def _incident(self, pending: _Pending, loss: float, norm: float, action: Action, rank: int) -> Incident:
        findings = []
        if not math.isfinite(loss):
            findings.append(Finding("loss", "loss", "forward", value=loss))
        if not math.isfinite(norm):
            findings.append(Finding("grad_norm", "total gradient norm", "backward", value=norm))
        return Incident(
            step=pending.step,
            rank=rank,
            phase="forward" if not math.isfinite(loss) or math.isfinite(norm) else "backward",
            findings=tuple(findings),
            action=action,
            loss=loss,
            grad_norm=norm,
            lr=pending.rates,
            notes=('read one step late (Policy(sync="late")): the graph is gone, so it was not located',),
        )
