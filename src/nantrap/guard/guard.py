"""`Guard`: the facade. Detects by one flag a step, contains, and hands a failed step on to be located and explained."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from nantrap import finite
from nantrap.errors import NonFiniteError, UsageError
from nantrap.guard.anchors import Anchors, Attempt
from nantrap.guard.buffers import BufferShadow
from nantrap.guard.closure import attempt_with_closure
from nantrap.guard.console import Console, stop_message, summary_text
from nantrap.guard.diagnose import Diagnosis, Observed
from nantrap.guard.ema import ema_modules, ema_update
from nantrap.guard.ladder import Ladder, Tally
from nantrap.guard.late import LateSteps
from nantrap.guard.loss import LossLike, as_loss, without_terms
from nantrap.guard.members import Members
from nantrap.guard.outcome import Outcome
from nantrap.guard.policy import Policy
from nantrap.guard.ranks import Agreement
from nantrap.guard.rates import current_rates, scale_rates
from nantrap.guard.scaling import Scaling
from nantrap.guard.spikes import SpikeDetector
from nantrap.guard.update import Update, needs_closure
from nantrap.guard.watch import Watch, WatchSpec
from nantrap.guard.window import Micro, Window
from nantrap.incident import Action, Finding, Incident
from nantrap.locate import RngState, RootCall, batch_findings, clear_probes, finding, tensors_of
from nantrap.locate.autopsy import examine, note_loss_part
from nantrap.record import History, Journal, StepRecord, write_run_info


class Guard:
    """Guards one model and one optimizer. Nothing non-finite reaches weights, optimizer state, buffers or averages.

    State held: the current window of micro-batches, a copy of written buffers, at most one copy of parameters and
    optimizer state (see `Policy.undo`, `Policy.anchor_every`), the last steps, and the open journal. A context
    manager; `close` removes every hook.

    Args:
        model: the model, also wrapped in `DistributedDataParallel` or `torch.compile`.
        optimizer: the optimizer of (at least) the model's parameters.
        scheduler: stepped after each applied step; leave it out if it is stepped once an epoch.
        scaler: a `torch.amp.GradScaler`, used in the right order: unscale, check, clip, step, update.
        ema: averaged weights, updated after each applied step: an `AveragedModel`, anything with `update()` or
            `update(model)`, or a function without arguments.
        max_grad_norm: clip to this total norm; `None` does not clip.
        policy: what to check and what to do; see `Policy`.
        run_dir: where the journal and the incidents go; `None` writes nothing.
        watch: names of parameters or buffers to follow, as patterns (`"*.alpha"`), or a dict of pattern to `Limit`.
        quiet: print nothing.

    Example:
        >>> import torch, nantrap
        >>> model = torch.nn.Linear(2, 1)
        >>> guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
        >>> guard.attempt(lambda batch: model(batch).square().mean(), torch.ones(4, 2)).applied
        True
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        scheduler: Any = None,
        scaler: Any = None,
        ema: Any = None,
        max_grad_norm: float | None = 1.0,
        policy: Policy | None = None,
        run_dir: str | os.PathLike[str] | None = None,
        watch: WatchSpec = (),
        quiet: bool = False,
    ) -> None:
        self.policy = policy or Policy()
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.run_dir = None if run_dir is None else os.fspath(run_dir)
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise UsageError(f"Guard(max_grad_norm={max_grad_norm!r}): a positive number, or None not to clip")
        if isinstance(scheduler, ReduceLROnPlateau):
            raise UsageError(
                "Guard(scheduler=ReduceLROnPlateau): it needs a metric, which the guard does not have; leave it out and "
                "call scheduler.step(metric) yourself"
            )
        self._max_grad_norm = max_grad_norm
        self._members = Members(model, optimizer)
        self._scaling = Scaling(scaler, optimizer, self.policy)
        self._ema_update = ema_update(ema, model)
        self._ema_modules = ema_modules(ema)
        self._agreement = Agreement()
        self._buffers = BufferShadow(self._members.root)
        self._update = Update(self._members, optimizer, self.policy)
        self._watch = Watch(watch, self._members.root)
        self._ladder = Ladder(self.policy)
        self._console = Console(quiet=quiet)
        self._loss_spikes = self._spike_detector()
        self._norm_spikes = self._spike_detector()
        self.history = History()
        self.tally = Tally()
        self._anchors = Anchors(
            self._members.parameters,
            optimizer,
            [self._members.root, *self._ema_modules],
            scheduler=scheduler,
            scaler=scaler,
            every=self.policy.anchor_every if self.policy.sync == "step" else 0,
            limit_bytes=self.policy.anchor_bytes,
        )
        self._late = LateSteps(self) if self.policy.sync == "late" else None
        self._closure_optimizer = needs_closure(optimizer)
        self._diagnosis = Diagnosis(self)
        self._step = 0
        self._window: Window | None = None
        self._root_call: RootCall | None = None
        self._attempting = False
        self._closed = False
        self.last_incident: Incident | None = None
        self._journal: Journal | None = None
        if run_dir is not None:
            self._journal = Journal(run_dir, rank=self._agreement.rank)
            if self._agreement.rank == 0:
                write_run_info(run_dir, self._facts())
        self._hooks = [
            model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
            model.register_forward_hook(self._after_forward),
        ]

    # ---- the two-line form

    def backward(self, loss: LossLike, *, retain_graph: bool = False) -> None:
        """What was `loss.backward()`. Call it once for each micro-batch of the step.

        Args:
            loss: a scalar tensor, or a dict of named terms whose sum is the loss.
            retain_graph: as in `Tensor.backward`.
        """
        self._require_open()
        if self._closure_optimizer:
            raise UsageError(
                f"{type(self.optimizer).__name__} evaluates the loss several times a step, so it cannot be used in the "
                "two-line form; use guard.attempt(fn, batch)"
            )
        micro = Micro(as_loss(loss), root_call=self._root_call)
        self._root_call = None
        self._backward(micro, given=loss, retain_graph=retain_graph)

    def step(self) -> Outcome:
        """What was clip, scaler, `optimizer.step()`, `scheduler.step()` and `zero_grad()`."""
        self._require_open()
        window = self._window
        if window is None:
            raise UsageError("guard.step() without guard.backward(loss) before it: there is no gradient to step on")
        try:
            if self._late is not None:
                return self._late.step(window)
            return self._finish(window)
        finally:
            self._window = None
            clear_probes()

    # ---- full power

    def attempt(self, fn: Callable[[Any], LossLike], batch: Any, *more: Any) -> Outcome:
        """Run one whole step: `fn(batch)` gives the loss, the guard does the rest and can run it again after a failure.

        Args:
            fn: computes the loss of a batch: a scalar tensor or a dict of named terms. After a failure it is called
                again, so it should have no lasting side effects.
            batch: anything `fn` takes.
            more: further micro-batches of the same step; each loss is divided by their number.
        """
        self._require_open()
        if self._window is not None:
            raise UsageError("guard.attempt inside a window that guard.backward began; call guard.step() first")
        self._attempting = True
        self._buffers.begin()
        self._anchors.begin_step(self._step)
        rng = RngState.capture()
        batches = (batch, *more)
        try:
            if self._closure_optimizer:
                return attempt_with_closure(self, fn, batch, rng, more)
            factor = 1.0 / len(batches)
            for index, micro_batch in enumerate(batches):
                if index:
                    rng = RngState.capture()
                if self.policy.check_batch and (bad := batch_findings(micro_batch)):
                    return self._bad_batch(bad, fn, micro_batch, rng)
                versions = {path: t._version for path, t in tensors_of(micro_batch)}
                given = fn(micro_batch)
                micro = Micro(as_loss(given), factor, micro_batch, fn, rng, versions=versions)
                self._backward(micro, given=given)
            outcome = self.step()
            attempt = Attempt(outcome.step, lambda b: as_loss(fn(b)).total, batches, rng, outcome.applied)
            self._anchors.remember(attempt)
            return outcome
        finally:
            self._attempting = False
            self._window = None

    # ---- on demand

    def check_state(self) -> list[Finding]:
        """Look at every parameter, buffer, optimizer state and averaged weight now; e.g. before an epoch.

        Returns:
            What is non-finite; an empty list means all is well. Buffers that were non-finite from the start (masks)
            are not counted.
        """
        found = self._update.findings("state")
        found += [finding("buffer", name, t, "state") for name, t in self._buffers.names_of_bad()]
        for module in self._ema_modules:
            named = [*module.named_parameters(), *module.named_buffers()]
            found += [finding("ema", n, t, "state") for n, t in named if finite.any_nonfinite([t])]
        return found

    def summary(self) -> str:
        """What was applied, what was skipped and why, in a few lines."""
        return summary_text(self.tally, run_dir=self.run_dir)

    def close(self) -> None:
        """Remove every hook, write the journal, print the summary if anything happened. May be called again."""
        if self._closed:
            return
        self._closed = True
        if self._late is not None:
            self._late.settle()
        for hook in self._hooks:
            hook.remove()
        if self._journal is not None:
            self._journal.close()
        if self.tally.incidents or self.tally.dropped_micro_batches:
            self._console.say(self.summary())

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- one micro-batch

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._attempting or self._closed or not torch.is_grad_enabled():
            return
        if self._window is None:
            self._buffers.begin()
            self._anchors.begin_step(self._step)
        self._root_call = RootCall(args, kwargs, RngState.capture(), _autocast_state(args, kwargs))

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        call = self._root_call
        if call is not None and not self._attempting:
            call.watch_output(output)

    def _backward(self, micro: Micro, *, given: LossLike, retain_graph: bool = False) -> None:
        window = self._window
        if window is None:
            window = self._window = Window(started=time.perf_counter())
        elif self._late is None and self.policy.micro_batches == "drop" and self._agreement.world_size == 1:
            self._settle(window)
        window.micros.append(micro)
        if self._late is None and micro.loss.total.device.type == "cpu":
            # no device to wait for: the loss is read before backward frees its graph
            micro.values = [value for scalar in micro.loss.scalars() for value in finite.read([scalar])]
            if not all(map(math.isfinite, micro.values)):
                micro = self._drop_bad_terms(window, micro, given)
                if micro.forward is None and micro.values and not math.isfinite(micro.values[0]):
                    micro.evidence = examine(micro.loss.total, micro.root_call)
            elif micro.forward is None:
                micro.evidence = note_loss_part(micro.loss.total, micro.root_call)
        total = micro.loss.total if micro.factor == 1.0 else micro.loss.total * micro.factor
        self._scaling.scale(total).backward(retain_graph=retain_graph)

    def _drop_bad_terms(self, window: Window, micro: Micro, given: LossLike) -> Micro:
        """With `bad_terms="drop"`, the micro-batch without its bad terms, if any are left."""
        assert micro.values is not None
        named = micro.loss.named(micro.values[1:])
        bad = {name for name, value in named.items() if not math.isfinite(value)}
        if self.policy.bad_terms != "drop" or not isinstance(given, Mapping) or len(bad) == len(named):
            return micro
        kept = without_terms(given, bad)
        if not any(isinstance(term, Tensor) and term.requires_grad for term in kept.values()):
            return micro
        window.findings += [Finding("term", n, "forward", value=named[n], note="dropped") for n in sorted(bad)]
        micro.loss = as_loss(kept)
        micro.values = [value for scalar in micro.loss.scalars() for value in finite.read([scalar])]
        self._console.say(f"step {self._step:,}: loss terms {', '.join(sorted(bad))} are bad and dropped")
        return micro

    def _settle(self, window: Window) -> None:
        """Another micro-batch follows: judge the last one now, and keep its gradients aside if they are good."""
        micro = window.micros[-1]
        values = micro.values
        gradients = self._members.gradients()
        norm = finite.gradient_norm(gradients)
        suspects = self._buffers.suspects()
        if values is None:
            scalars = micro.loss.scalars()
            *values, norm_value, flag = finite.read([*scalars, norm, finite.nonfinite_flag(suspects).to(norm.device)])
            micro.values = values
        else:
            norm_value, flag = finite.read([norm, finite.nonfinite_flag(suspects).to(norm.device)])
        overflow_is_probing = self._scaling.enabled and all(map(math.isfinite, values))
        good = all(map(math.isfinite, values)) and not flag and (math.isfinite(norm_value) or overflow_is_probing)
        window.settled += 1
        if good or self.policy.on_incident == "observe":
            window.good += 1
            self._count_loss(window, micro)
            window.stash(self._members.parameters)
            self._buffers.adopt()
            return
        incident = self._diagnosis.run(
            Observed(self._step, micro, values, norm_value, buffers_bad=bool(flag)), Action.SKIP
        )
        window.incident = window.incident or incident
        window.dropped += 1
        self.tally.dropped_micro_batches += 1
        self._members.clear_gradients()
        self._buffers.restore()
        self._console.incident(incident, f"micro-batch {len(window.micros)} dropped, the others stay")
        if self.policy.on_incident == "raise":
            self._window = None
            raise NonFiniteError(stop_message(incident, "the policy stops at the first incident"), incident=incident)

    def _count_loss(self, window: Window, micro: Micro) -> None:
        assert micro.values is not None
        window.loss += micro.values[0] * micro.factor
        for name, value in micro.loss.named(micro.values[1:]).items():
            window.terms[name] = window.terms.get(name, 0.0) + value * micro.factor

    # ---- the end of the step

    def _finish(self, window: Window) -> Outcome:
        last = window.micros[-1]
        self._scaling.unscale()
        gradients = self._members.gradients()
        norm = finite.gradient_norm(gradients)
        suspects = self._buffers.suspects()
        watched = self._watch.scalars() if self._watch else []
        unread = [m for m in window.micros[window.settled :] if m.values is None]
        scalars = [norm, *watched]
        if suspects:
            scalars.append(finite.nonfinite_flag(suspects).to(norm.device))
        for micro in unread:
            scalars += micro.loss.scalars()
        read = finite.read(scalars)
        norm_value, position = read[0], 1 + len(watched)
        watch_values = self._watch.named(read[1:position]) if watched else {}
        buffers_bad = False
        if suspects:
            buffers_bad, position = bool(read[position]), position + 1
        for micro in unread:
            count = len(micro.loss.scalars())
            micro.values, position = read[position : position + count], position + count
        guilty: Micro | None = None
        for micro in window.micros[window.settled :]:
            assert micro.values is not None
            if guilty is None and not all(map(math.isfinite, micro.values)):
                guilty = micro
        norm_bad = not math.isfinite(norm_value)
        probing = norm_bad and guilty is None and not buffers_bad and self._scaling.is_probing()
        verdict = self._agreement.decide(origin=guilty is not None or buffers_bad, symptom=norm_bad and not probing)
        if verdict.bad:
            observed = Observed(
                self._step,
                guilty or last,
                (guilty or last).values or [],
                norm_value,
                buffers_bad=buffers_bad,
                rank=verdict.first_rank,
                local=self._agreement.rank in verdict.bad_ranks,
                harmless=not norm_bad and not buffers_bad and self._agreement.world_size == 1,
            )
            if window.good and self._agreement.world_size == 1 and self.policy.on_incident == "skip":
                return self._finish_without_last(window, observed, watch_values)
            return self._bad_step(window, observed, watch_values)
        for micro in window.micros[window.settled :]:
            window.good += 1
            self._count_loss(window, micro)
        if window.accumulated is not None:
            window.stash(self._members.parameters)
            norm_value, norm, probing = self._merge(window, probing)
        if probing:
            return self._probe_scale(window, norm_value, watch_values)
        if self.policy.spikes != "off" and (spike := self._spike(window, norm_value)) is not None:
            return self._bad_step(window, spike, watch_values)
        return self._apply(window, norm, norm_value, watch_values)

    def _merge(self, window: Window, probing: bool) -> tuple[float, Tensor, bool]:
        """The gradients of all good micro-batches together, weighted right, and their norm."""
        total = window.good + window.dropped
        scale = total / window.good if window.dropped and self.policy.micro_weight == "mean" else 1.0
        window.loss *= scale
        window.terms = {name: value * scale for name, value in window.terms.items()}
        window.unstash(self._members.parameters, scale=scale)
        norm = finite.gradient_norm(self._members.gradients())
        (value,) = finite.read([norm])
        return value, norm, probing or (not math.isfinite(value) and self._scaling.is_probing())

    def _finish_without_last(self, window: Window, observed: Observed, watch: dict[str, float]) -> Outcome:
        """The last micro-batch is bad, earlier ones are good: drop it and step on the rest."""
        incident = self._diagnosis.run(observed, Action.SKIP)
        window.incident = window.incident or incident
        window.dropped += 1
        self.tally.dropped_micro_batches += 1
        self._members.clear_gradients()
        self._buffers.restore()
        self._console.incident(incident, f"micro-batch {len(window.micros)} dropped, the others stay")
        norm_value, norm, probing = self._merge(window, probing=False)
        if probing:
            return self._probe_scale(window, norm_value, watch)
        return self._apply(window, norm, norm_value, watch)

    def _apply(self, window: Window, norm: Tensor, norm_value: float, watch: dict[str, float]) -> Outcome:
        if self._max_grad_norm is not None:
            finite.clip_with_norm(self._members.parameters, max_norm=self._max_grad_norm, total=norm, known=norm_value)
        clipped = norm_value if self._max_grad_norm is None else min(norm_value, self._max_grad_norm)
        rates = current_rates(self.optimizer)
        undone = self._update.run(self._scaling.step, norm=clipped)
        if self._agreement.world_size > 1 and self._update.snapshot is not None:
            verdict = self._agreement.decide(origin=bool(undone), symptom=False)
            if verdict.bad and not undone:
                self._update.snapshot.restore()
                undone = [Finding("parameter", f"rank {verdict.first_rank}", "optimizer", note="on another rank")]
        if undone:
            last = window.micros[-1]
            observed = Observed(
                self._step, last, last.values or [], norm_value, update=undone, rank=self._agreement.rank
            )
            return self._bad_step(window, observed, watch)
        self._scaling.update()
        self._buffers.adopt()
        if self.scheduler is not None:
            self.scheduler.step()
        if self._ema_update is not None:
            self._ema_update()
        self._members.clear_gradients()
        self._ladder.applied()
        self.tally.applied += 1
        if self.policy.spikes != "off":
            self._loss_spikes.add(window.loss)
            self._norm_spikes.add(norm_value)
        incident = window.incident
        if window.findings and incident is None:
            incident = self._diagnosis.dropped_terms(self._step, window)
        return self._end(window, Action.APPLY, norm_value, watch, rates, incident=incident)

    def _probe_scale(self, window: Window, norm: float, watch: dict[str, float]) -> Outcome:
        """The scaler met an overflow while it searches its scale: exactly what it would do without us."""
        rates = current_rates(self.optimizer)
        self._scaling.step()
        self._scaling.update()
        self._buffers.adopt()
        if self.scheduler is not None:
            self.scheduler.step()
        self._members.clear_gradients()
        self.tally.scaler_probes += 1
        return self._end(window, Action.SKIP, norm, watch, rates, incident=window.incident)

    def _bad_step(self, window: Window, observed: Observed, watch: dict[str, float]) -> Outcome:
        if not window.loss and observed.values:
            window.loss = observed.values[0] * observed.micro.factor
            named = observed.micro.loss.named(observed.values[1:])
            window.terms = {name: value * observed.micro.factor for name, value in named.items()}
        rates = current_rates(self.optimizer)
        action, reason = self._ladder.decide(
            self._step, harmless=observed.harmless, can_roll_back=bool(self._anchors.candidates())
        )
        if action is Action.APPLY:  # observe: as the plain loop would have done
            return self._apply_anyway(window, observed, watch, rates)
        incident = self._diagnosis.run(observed, action)
        self._members.clear_gradients()
        self._buffers.restore()
        self._scaling.forget()
        if action is Action.ROLLBACK:
            reason += self._roll_back()
        elif self.scheduler is not None and self.policy.scheduler_on_skip == "advance":
            self.scheduler.step()
        self._console.incident(incident, reason)
        outcome = self._end(window, action, observed.norm, watch, rates, incident=incident)
        if action is Action.STOP:
            if self._journal is not None:
                self._journal.flush()
            raise NonFiniteError(stop_message(incident, reason), incident=incident)
        return outcome

    def _apply_anyway(
        self, window: Window, observed: Observed, watch: dict[str, float], rates: tuple[float, ...]
    ) -> Outcome:
        incident = self._diagnosis.run(observed, Action.APPLY)
        window.unstash(self._members.parameters, scale=1.0)
        if not observed.update:
            gradients = self._members.gradients()
            if self._max_grad_norm is not None and gradients:
                norm = finite.gradient_norm(gradients)
                finite.clip_with_norm(self._members.parameters, max_norm=self._max_grad_norm, total=norm)
            self._scaling.step()
        else:
            self._scaling.step()  # it was undone to be looked at; observed runs take it
        self._scaling.update()
        self._buffers.adopt()
        if self.scheduler is not None:
            self.scheduler.step()
        if self._ema_update is not None:
            self._ema_update()
        self._members.clear_gradients()
        self.tally.applied += 1
        self._console.incident(incident, "the policy only observes")
        return self._end(window, Action.APPLY, observed.norm, watch, rates, incident=incident)

    def _roll_back(self) -> str:
        anchor = min(self._anchors.candidates(), key=lambda a: a.rollbacks)
        anchor.rollbacks += 1
        self._anchors.restore(anchor)
        scale_rates(self.optimizer, self.scheduler, self.policy.lr_backoff)
        self._anchors.forget_after(anchor.step)
        self._buffers.adopt()
        self.tally.rollbacks += 1
        rates = ", ".join(f"{rate:.4g}" for rate in current_rates(self.optimizer)[:3])
        return f"; state of step {anchor.step:,}, lr now {rates}"

    def _bad_batch(self, bad: list[Finding], fn: Any, batch: Any, rng: RngState) -> Outcome:
        """`check_batch` found it before the forward pass: nothing was computed, nothing needs to be undone."""
        window = Window(started=time.perf_counter())
        action, reason = self._ladder.decide(self._step, harmless=False, can_roll_back=False)
        incident = self._diagnosis.bad_batch(self._step, bad, action)
        self._console.incident(incident, reason)
        window.loss = math.nan
        outcome = self._end(window, action, math.nan, {}, current_rates(self.optimizer), incident=incident)
        if action is Action.STOP:
            raise NonFiniteError(stop_message(incident, reason), incident=incident)
        return outcome

    # ---- bookkeeping

    def _end(
        self,
        window: Window,
        action: Action,
        norm: float,
        watch: dict[str, float],
        rates: tuple[float, ...],
        *,
        incident: Incident | None,
    ) -> Outcome:
        step = self._step
        applied = action is Action.APPLY
        scale = self._scaling.scale_value()
        self.tally.attempted += 1
        self.history.add(StepRecord(step, window.loss, norm, rates, applied, scale))
        if self._journal is not None:
            line: dict[str, Any] = {
                "step": step,
                "loss": window.loss,
                "grad_norm": norm,
                "lr": rates,
                "action": action.value,
                "ms": round((time.perf_counter() - window.started) * 1e3, 3),
            }
            if window.terms:
                line["terms"] = window.terms
            if scale is not None:
                line["scale"] = scale
            if watch:
                line["watch"] = watch
            if window.dropped:
                line["dropped"] = window.dropped
            if incident is not None:
                line["incident"] = {
                    "phase": incident.phase,
                    "module": incident.module,
                    "op": incident.op,
                    "cause": incident.causes[0].slug if incident.causes else None,
                }
            self._journal.append(line)
            if incident is not None:
                self._journal.flush()
        if watch:
            for message in self._watch.exceeded(watch, step):
                self._console.say(f"step {step:,}: watched value {message}")
        if incident is not None:
            self.last_incident = incident
            self.tally.incidents += 1
            self.tally.causes[incident.causes[0].slug if incident.causes else "undiagnosed"] += 1
        self._step = step + 1
        return Outcome(applied, action, step, window.loss, norm, incident, window.terms)

    def _spike(self, window: Window, norm: float) -> Observed | None:
        """A finite value far outside its range: reported, or returned as a reason to skip."""
        for name, value, detector in (
            ("loss", window.loss, self._loss_spikes),
            ("gradient norm", norm, self._norm_spikes),
        ):
            score = detector.score(value)
            if score is None:
                continue
            self.tally.spikes += 1
            text = f"the {name} {value:.4g} lies {score:.0f} robust standard deviations above its recent median"
            if self.policy.spikes == "skip":
                spike = Finding("spike", name, "forward", value=value, note=text)
                last = window.micros[-1]
                return Observed(self._step, last, last.values or [], norm, spike=spike, harmless=True)
            self._console.say(f"step {self._step:,}: {text}")
        return None

    def _spike_detector(self) -> SpikeDetector:
        policy = self.policy
        return SpikeDetector(window=policy.spike_window, threshold=policy.spike_threshold, warmup=policy.spike_warmup)

    def _facts(self) -> dict[str, Any]:
        parameters = self._members.parameters
        return {
            "model": type(self._members.root).__name__,
            "parameters": sum(p.numel() for p in parameters),
            "optimizer": type(self.optimizer).__name__,
            "precision": sorted({finite.dtype_name(p.dtype) for p in parameters}),
            "devices": sorted({str(p.device) for p in parameters}),
            "world_size": self._agreement.world_size,
            "max_grad_norm": self._max_grad_norm,
            "loss_scaler": self._scaling.enabled,
            "policy": {name: getattr(self.policy, name) for name in self.policy.__slots__},
        }

    def _require_open(self) -> None:
        if self._closed:
            raise UsageError("this guard is closed; make a new one")


def _autocast_state(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, torch.dtype] | None:
    for kind in ("cuda", "cpu"):
        with contextlib.suppress(RuntimeError):
            if torch.is_autocast_enabled(kind):
                return kind, torch.get_autocast_dtype(kind)
    return None
