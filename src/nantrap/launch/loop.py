"""A script's own training loop: the script calls PyTorch, and a `ScriptLoop` is notified of each call.

It uses the same parts and the same `run_step` as a `Guard`. What differs is its driver: it clears no gradient and steps
no schedule; the script's own `optimizer.step()` runs, or it does not.

    the script calls           ScriptLoop method             what it does
    model(x)                   (hooks of the collector)      notes inputs and random streams; buffers as before
    loss.backward()            backward(loss, run)           reads the loss, walks the live graph if it is bad
    clip_grad_norm_(...)       clipped(norm)                 saves a second pass over the gradients
    optimizer.step()           step(run)                     judges; runs it, or not
    scaler.step(optimizer)     step(run, scaler=...)         the same, and leaves the scaler its search for a scale
    optimizer.step(closure)    step_with_closure(...)        the same, for optimizers that evaluate the loss themselves
    optimizer.zero_grad()      clears()                      what the script abandons takes no part any more
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from nantrap import finite
from nantrap.errors import NonFiniteError
from nantrap.guard.closure import judge_evaluations
from nantrap.guard.collect import Collector, reads_at_once
from nantrap.guard.exceptions import explain_exception, no_loss
from nantrap.guard.judge import Verdict
from nantrap.guard.loss import Loss
from nantrap.guard.micro_batches import drop
from nantrap.guard.observation import Observation, observe
from nantrap.guard.outcome import Outcome
from nantrap.guard.parts import make_parts
from nantrap.guard.policy import Policy
from nantrap.guard.progress import Tally
from nantrap.guard.rates import current_rates
from nantrap.guard.reading import Reading
from nantrap.guard.recorder import dead_lines
from nantrap.guard.snapshot import UpdateSnapshot
from nantrap.guard.state_check import check_state
from nantrap.guard.step import run_step
from nantrap.guard.watch import Limit
from nantrap.guard.window import Micro, Window
from nantrap.incident import Action, Incident
from nantrap.launch.asked import Asked
from nantrap.launch.driver import ScriptDriver
from nantrap.launch.habits import Habits
from nantrap.launch.loaders import LoadedBatch
from nantrap.launch.replicas import Comparison
from nantrap.launch.roots import Parts as PlainParts
from nantrap.launch.torch_private import hook_tables
from nantrap.locate.autopsy import examine
from nantrap.locate.hooks import Hook
from nantrap.locate.losspart import note_loss_part
from nantrap.record import History
from nantrap.record.alerts import Alerts

_SHOWN = 16


class Activity:
    """Whether a guard of this process is working: calls that come meanwhile are its own. Shared by all guards."""

    __slots__ = ("busy",)

    def __init__(self) -> None:
        self.busy = False


class ScriptLoop:
    """Guards what one optimizer owns, in a loop of the script.

    State held: the parts and the driver of a step, whether the last step was refused, and the error with which the
    guard stopped.

    Args:
        model: the outermost module that the optimizer's parameters belong to.
        optimizer: the optimizer.
        policy: what to check and what to do.
        run_dir: where the journal and the incidents go.
        quiet: print nothing.
        find_batch: from the inputs of a forward pass to the batch of a data loader that they are, if it is known.
        checks_epochs: check the whole state before each epoch of the data loader, and print the result.
        watch: names of parameters and buffers to follow, with their limits.
        siblings: the guards of the script's other optimizers, which may share a loss with this one.
        export: exporters, by name.
        alerts: which alerts to send.
        bad_samples: the list of bad samples of the run.
        asked: the scalars that the script asked about, shared by all guards.
        activity: whether any guard of the process is at work.
        max_grad_norm: clip to this total norm before each step, whatever the script does; `None` does not.
        save_every: save every this many steps; 0 for never.
        schedules: gives the schedules of the optimizer, which the script steps.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        policy: Policy,
        run_dir: str | os.PathLike[str] | None = None,
        quiet: bool = False,
        find_batch: Callable[[Any], LoadedBatch | None] | None = None,
        checks_epochs: bool = False,
        watch: Mapping[str, Limit | None] | None = None,
        siblings: Sequence[ScriptLoop] = (),
        export: Sequence[str] = (),
        alerts: Alerts | None = None,
        bad_samples: str | None = None,
        asked: Asked | None = None,
        activity: Activity | None = None,
        max_grad_norm: float | None = None,
        save_every: int = 0,
        schedules: Callable[[], Sequence[Any]] = tuple,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.policy = policy
        self.refused = False
        self.stopped: NonFiniteError | None = None
        self.comparison: Comparison | None = None
        """Compares the parameters with those of other ranks that hold the same model."""
        self._activity = activity or Activity()
        self._find_batch = find_batch
        self._checks_epochs = checks_epochs
        self._checked_epoch = -1
        self._siblings = siblings
        self._asked = asked or Asked()
        self.diagnosed: tuple[weakref.ref[Tensor], Incident] | None = None
        """The loss and the incident of the last diagnosis, for a sibling that sees the same loss."""
        self.parts = make_parts(
            model,
            optimizer,
            policy=policy,
            run_dir=run_dir,
            quiet=quiet,
            by="script",
            watch=watch or (),
            neighbours=self,
            export=export,
            alerts=alerts,
            bad_samples=bad_samples,
            max_grad_norm=max_grad_norm,
            save_every=save_every,
            schedules=schedules,
        )
        self._driver = ScriptDriver(self.parts.protected, self.parts.scaling, max_grad_norm=max_grad_norm)
        self._collector = Collector(model, self.parts, self._driver, before_pass=self._before_pass)
        self._habits = Habits(self.parts.recorder.say)
        self._micros_last_time = 1
        # without a module no forward pass is seen, so questions are of interest at any time
        self._always_asks = isinstance(model, PlainParts) and not any(True for _ in model.children())
        self._asked.open = self._asked.open or self._always_asks
        self._in_backward = False

    @property
    def tally(self) -> Tally:
        """What the run did so far, in numbers."""
        return self.parts.recorder.tally

    @property
    def last_incident(self) -> Incident | None:
        """The last incident of the run."""
        return self.parts.recorder.last_incident

    @property
    def history(self) -> History:
        """The last steps, as the journal has them."""
        return self.parts.recorder.history()

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The guarded parameters."""
        return self.parts.protected.members.parameters

    # ---- what the script does

    def backward(self, loss: Tensor, run: Callable[[], None]) -> None:
        """The script's `loss.backward()`; `run` is the call itself. `loss` is without the scale of a scaler."""
        self._driver.forget_norm()
        collector = self._collector
        window = collector.window
        if window is None:
            self._habits.before_backward()
            window = collector.open()
        micro = Micro(Loss(loss, {}), root_call=collector.take_root_call())
        self._note_position(micro)
        self._asked.open = self._always_asks
        left_out = self._asked.take(instead_of=loss)
        if self._always_asks:
            self._asked.trained(loss)
        if reads_at_once(loss):
            micro.values = [loss.item()]
            if left_out and not micro.bad:
                self._left_out(window, micro, left_out[0])
            if micro.bad:
                micro.evidence = examine(loss, micro.root_call)
                if self._drops(window):
                    self._drop(window, micro)
                    return
            else:
                micro.evidence = note_loss_part(loss, micro.root_call)
        window.micros.append(micro)
        self._in_backward = True
        try:
            run()
        finally:
            self._in_backward = False

    def made_any_of(self, nodes: Iterable[Any]) -> bool:
        """Whether a forward pass of the model ended in any of these nodes, since the last backward pass."""
        call = self._collector.root_call
        return call is not None and any(not each.nodes.isdisjoint(nodes) for each in call.chain())

    def protect(self, module: nn.Module, *, earlier: Mapping[str, Tensor] | None = None) -> None:
        """The script calls a module beside the model (a loss with buffers, a teacher): it is put back like the model.

        Args:
            module: the module.
            earlier: copies of its buffers from before its call, if it was called before this guard was made.
        """
        protected = self.parts.protected
        if not any(module is each for each in protected.root.modules()):
            taken = {name for name, _ in protected.members.also}
            base = name = type(module).__name__.lower()
            number = 1
            while name in taken:
                number += 1
                name = f"{base}{number}"
            if earlier is not None:
                self._collector.begin_early(module)
            protected.add(name, module, earlier=earlier)
        self._collector.watch_beside(module)

    @property
    def keeps_bad_gradients(self) -> bool:
        """Whether gradients that are not finite are left as they are by the script's clipping: no step follows."""
        return self.policy.on_incident != "observe" and not self._activity.busy

    def clipped(self, norm: Tensor) -> None:
        """The script clipped all gradients, and this was their norm before."""
        self._driver.note_norm(norm)

    def step(self, run: Callable[[], Any], *, scaler: Any = None, still_scaled: bool = False) -> Any:
        """The script's `optimizer.step()` or `scaler.step(optimizer)`: `run()` if the step is good, else nothing.

        Args:
            run: the call itself.
            scaler: the scaler through which it comes.
            still_scaled: the gradients still carry its scale; a fused optimizer divides them itself.
        """
        if self.stopped is not None:
            self._refuse_again()
        if self._collector.window is None:
            self.settle()
        repeated = self._collector.window is None and self._habits.is_repeated_step()
        if repeated and self.refused:
            return None  # the step stays refused until there are new gradients
        window = self._seen_window()
        window.repeated = repeated
        self._driver.prepare(run, scaler=scaler, still_scaled=still_scaled)
        self._activity.busy = True
        try:
            self._ended(run_step(self.parts, self._driver, window), window)
        except NonFiniteError as error:
            self.stopped, self.refused = error, True
            raise
        finally:
            self._end()
        return self._driver.result

    def step_with_closure(self, run: Callable[[Callable[[], Any]], Any], closure: Callable[[], Any]) -> Any:
        """The script's `optimizer.step(closure)`; `run` takes the closure that is to be used."""
        if self.stopped is not None:
            self._refuse_again()
        optimizer = self.optimizer
        if type(optimizer).__module__.startswith("torch.optim") and not isinstance(optimizer, LBFGS):
            # it would evaluate the closure once, before anything else: here it is judged before it is used
            with torch.enable_grad():
                value = closure()
            self.step(lambda: run(lambda: value))
            return value
        return self._evaluated_step(run, closure)

    def clears(self) -> None:
        """The script is about to clear the gradients. In the middle of a step this abandons the step."""
        window = self._collector.window
        if window is None or self._activity.busy:
            return
        if window.micros and self._is_bad(window):
            self._given_up(window, "the script cleared the gradients of this step instead of making it")
        self._collector.window = None
        self._driver.forget_norm()
        self._forget_bad_buffers()

    def leave(self) -> None:
        """The script turns to an evaluation, a save or its end: a forward pass without a backward pass is abandoned."""
        if not self._activity.busy:
            self.settle()
            if self._collector.window is None:
                self._forget_bad_buffers()

    def settle(self) -> None:
        """A forward pass whose loss the script tested and abandoned is an incident; its buffers are restored
        immediately."""
        self._asked.open = False
        for loss in self._asked.take():
            call = self._collector.take_root_call()
            if call is not None:
                call.passed = True
            micro = Micro(Loss(loss, {}), root_call=call, values=[float(loss.detach())])
            micro.evidence = examine(loss, call)
            self._note_position(micro)
            window = self._collector.window
            if window is not None and window.micros:
                self._drop(window, micro, "left out by the script")
            else:
                given_up = Window(time.perf_counter(), whole=True, micros=[micro])
                self._given_up(given_up, "the script skipped this batch itself")
            break  # several losses of one forward pass are one incident
        self._asked.open = self._always_asks

    def continue_at(self, step: int) -> None:
        """The script restored a state of this step: journal and messages count on from there."""
        if step > self.parts.progress.step and not self.tally.attempted:
            self.parts.recovery.continue_at(step)
            self.parts.recorder.note_resume(step)
            self.parts.recorder.say(f"the script resumes at step {step:,}")

    def explain(self, error: BaseException) -> Incident | None:
        """The script ended with an exception: report the non-finite value that caused it, if any."""
        return explain_exception(self.parts, self._collector, error)

    def bad_state(self) -> list[str]:
        """The names of the guarded parameters and buffers that are not finite now."""
        protected = self.parts.protected
        bad = [name for name, parameter in protected.members.named() if finite.any_nonfinite([parameter.detach()])]
        return bad + [name for name, _ in protected.buffers.names_of_bad()]

    def notes(self) -> list[str]:
        """What the summary says about the training as a whole."""
        samples = self.parts.recorder.samples
        added = [samples.summary()] if samples is not None and samples.added else []
        differing = []
        if self.comparison is not None:
            self.comparison.end()
            differing = [self.comparison.note] if self.comparison.note else []
        return dead_lines(self.tally) + self._habits.notes() + differing + added

    @property
    def is_in_step(self) -> bool:
        """Whether a backward pass was made whose step is still to come."""
        return self._collector.window is not None and not self._activity.busy

    def close(self) -> None:
        """Remove every hook and write the journal. May be called again."""
        self._collector.close()
        self.parts.recorder.close()
        self.parts.recovery.close()

    @contextlib.contextmanager
    def unhooked(self) -> Iterator[None]:
        """The guard's hooks are removed while the whole model is being saved."""
        taken: list[tuple[dict[int, Any], dict[int, Any]]] = []
        for module in self.parts.protected.root.modules():
            for hooks in hook_tables(module):
                if any(isinstance(hook, Hook) for hook in hooks.values()):
                    taken.append((hooks, dict(hooks)))
                    for key in [key for key, hook in hooks.items() if isinstance(hook, Hook)]:
                        del hooks[key]
        try:
            yield
        finally:
            for hooks, before in taken:
                hooks.clear()
                hooks.update(before)

    # ---- what a diagnosis asks for

    def name_samples(self, incident: Incident, micro: Micro) -> Incident:
        """The incident with the dataset's own indices, where the data loader gives them."""
        call = micro.root_call
        if incident.dataset_indices or self._find_batch is None or call is None:
            return incident
        batch = self._find_batch([(each.args, each.kwargs) for each in call.chain()])
        if batch is None or not batch.indices:
            return incident
        indices = batch.indices
        if incident.samples and max(incident.samples) < len(indices):
            notes = incident.notes
            if batch.original:
                below = ", ".join(str(batch.original[i]) for i in incident.samples[:_SHOWN])
                kind = type(batch.dataset()).__name__
                notes = (*notes, f"the dataset is a {kind}: in the dataset below it the index is {below}")
            found = tuple(indices[i] for i in incident.samples)
            samples = self.parts.recorder.samples
            if samples is not None:
                samples.see(batch.dataset(), found)
            return replace(incident, dataset_indices=found, notes=notes)
        shown = ", ".join(map(str, indices[:_SHOWN])) + (", ..." if len(indices) > _SHOWN else "")
        return replace(incident, notes=(*incident.notes, f"the batch was made of the dataset's samples {shown}"))

    def known_incident(self, micro: Micro) -> Incident | None:
        """The incident of a sibling that saw the same loss."""
        for sibling in self._siblings:
            known = sibling.diagnosed
            if sibling is not self and known is not None and known[0]() is micro.loss.total:
                return known[1]
        return None

    def remember_incident(self, micro: Micro, incident: Incident) -> None:
        """For a sibling that sees the same loss."""
        self.diagnosed = weakref.ref(micro.loss.total), incident

    # ---- parts

    def _before_pass(self, module: nn.Module) -> bool:
        """Whether a forward pass is the script's: not a checkpointed part that backward runs once more."""
        if self._in_backward:
            return False
        collector = self._collector
        if not self._activity.busy and (collector.root_call is None or not collector.root_call.running):
            self.settle()
        if collector.begun:
            earlier = collector.root_call
            if earlier is not None and earlier.module is module and not earlier.running:
                self._forget_bad_buffers()
            elif collector.window is not None and collector.window.micros and self.parts.drops_micro_batches:
                self.parts.protected.buffers.mark()  # else a bad micro-batch has not been put back
        self._asked.open = module.training
        return True

    def _forget_bad_buffers(self) -> None:
        """A forward pass without a backward pass left bad buffers: the script skipped its bad step, but not its
        buffers."""
        buffers = self.parts.protected.buffers
        if not self._collector.begun or not buffers or not finite.any_nonfinite(buffers.suspects()):
            return
        bad = [name for name, _ in buffers.names_of_bad()]
        if bad and self.policy.on_incident != "observe":
            buffers.restore(uncounted=True)
            others = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            self.parts.recorder.say(
                f"step {self.parts.progress.step:,}: a forward pass that was not trained on left non-finite values in "
                f"buffer {bad[0]}{others}; they were restored"
            )

    def _drops(self, window: Window) -> bool:
        """Whether a bad micro-batch can be left out: its backward pass is not run, so the others' gradients stay."""
        accumulates = bool(window.micros) or window.dropped or self._micros_last_time > 1
        return bool(accumulates) and self.parts.drops_micro_batches

    def _note_position(self, micro: Micro) -> None:
        """Epoch and batch of a forward pass, where the data loader gives them."""
        call, batch = micro.root_call, None
        if self._find_batch is not None and call is not None:
            batch = self._find_batch((call.args, call.kwargs))
        if batch is not None and call is not None:
            call.loaded = True
            progress = self.parts.progress
            progress.epoch, progress.batch = batch.epoch, batch.number
            if self._checks_epochs and batch.epoch > self._checked_epoch:
                self._checked_epoch = batch.epoch
                check_state(self.parts, in_forward=True)

    def _is_bad(self, window: Window) -> bool:
        """Whether a step that the script abandons was bad: its loss, or its gradients as they are now."""
        if any(micro.bad for micro in window.micros):
            return True
        return not math.isfinite(finite.read([self._driver.norm()])[0])

    def _observed(self, micro: Micro, norm: float = 0.0, *, buffers_bad: bool = False) -> Observation:
        """What was seen of a bad micro-batch that only this rank knows of."""
        verdict = Verdict(bad=True, harmful=True, bad_ranks=(self.parts.ranks.rank,))
        return observe(self.parts.protected, micro, norm, verdict=verdict, buffers_bad=buffers_bad, copy_gradients=True)

    def _given_up(self, window: Window, words: str) -> None:
        """A bad step that the script itself does not make: contained, diagnosed and recorded like any other."""
        parts = self.parts
        observes = self.policy.on_incident == "observe"
        self._activity.busy = True
        try:
            micro = next((micro for micro in window.micros if micro.bad), window.micros[-1])
            norm = finite.read([self._driver.norm()])[0]
            bad_buffers = bool(parts.protected.buffers.names_of_bad())
            observation = self._observed(micro, norm, buffers_bad=bad_buffers)
            if not observes:
                parts.protected.restore()
            draft = parts.diagnosis.draft(observation)
            if not observes:
                parts.protected.restore()
            window.given_up = True
            reading = Reading(norm, micro.values[0] if micro.values else math.nan, rates=current_rates(self.optimizer))
            restored = None if observes else parts.protected.verify()
            incident = parts.recorder.finish(draft, Action.SKIP, words, restored=restored)
            parts.recorder.tally.given_up += 1
            parts.recorder.end(window, reading, Action.SKIP, incident)
        finally:
            self._activity.busy = False
            self._collector.end()

    def report_value(self, window: Window, words: str) -> None:
        """A value that no optimizer makes a step from is not finite: diagnosed and recorded, nothing is prevented."""
        parts = self.parts
        (micro,) = window.micros
        self._activity.busy = True
        try:
            draft = parts.diagnosis.draft(self._observed(micro))
            reading = Reading(math.nan, micro.values[0] if micro.values else math.nan)
            incident = parts.recorder.finish(draft, Action.APPLY, words)
            parts.recorder.end(window, reading, Action.APPLY, incident)
        finally:
            self._activity.busy = False
            self._collector.end()

    def _left_out(self, window: Window, micro: Micro, loss: Tensor) -> None:
        """The script trains on another loss than the bad one it looked at: on the other heads, or on a constant."""
        parts = self.parts
        self._activity.busy = True
        try:
            bad = Micro(Loss(loss, {}), root_call=micro.root_call, values=[float(loss.detach())])
            bad.evidence = examine(loss, micro.root_call)
            draft = parts.diagnosis.draft(self._observed(bad))
            window.drafts.append((draft, "the script left this non-finite loss out and trained on another one"))
            parts.recorder.tally.left_out += 1
        finally:
            self._activity.busy = False

    def _drop(self, window: Window, micro: Micro, words: str = "left out") -> None:
        number = len(window.micros) + window.dropped + 1
        parts = self.parts
        self._activity.busy = True
        try:
            draft = parts.diagnosis.draft(self._observed(micro))
            drop(parts, window, draft, f"micro-batch {number} {words}, the others stay")
            parts.protected.buffers.restore_mark()
        finally:
            self._activity.busy = False

    def _seen_window(self) -> Window:
        """The window of the step; if no backward pass was seen, one that has only the gradients."""
        window = self._collector.window or self._collector.open()
        if not window.micros and not window.dropped:
            window.micros.append(Micro(no_loss(), values=[]))
        return window

    def _refuse_again(self) -> None:
        """A script may catch the error with which the guard stopped it; it must not continue after that."""
        assert self.stopped is not None
        self._driver.refuse_update()
        self.parts.protected.buffers.restore()
        self._collector.end()
        raise self.stopped

    def _ended(self, outcome: Outcome, window: Window) -> None:
        self.refused = not outcome.applied and outcome.incident is not None  # a scaler that probes continues as usual
        if self.parts.recovery.acts_after_steps:
            self.parts.recovery.after_step(outcome)
        if self.comparison is not None:
            self.comparison.after_step(self.tally.attempted)
        self._habits.after_step(self.parameters)
        self._micros_last_time = len(window.micros) + window.dropped

    def _end(self) -> None:
        self._activity.busy = False
        self._driver.forget_norm()
        self._collector.end()

    def _evaluated_step(self, run: Callable[[Callable[[], Any]], Any], closure: Callable[[], Any]) -> Any:
        """An optimizer that evaluates the loss several times: a copy is taken, start and result are judged."""
        members = self.parts.protected.members
        norms: list[Tensor] = []

        def watched() -> Any:
            value = closure()
            if not norms:
                norms.append(finite.gradient_norm(members.gradients()))
            return value

        snapshot = UpdateSnapshot(members.parameters, self.optimizer)
        snapshot.take()
        rates = current_rates(self.optimizer)
        taken = run(watched)
        window = self._seen_window()
        norm = finite.read(norms or [torch.zeros(())])[0]
        self._activity.busy = True
        try:
            first = window.micros[0]
            first.values = finite.read(first.loss.scalars()) if first.values is None else first.values
            self._ended(judge_evaluations(self.parts, self._driver, window, norm, snapshot, rates), window)
        except NonFiniteError as error:
            self.stopped, self.refused = error, True
            raise
        finally:
            self._end()
        return taken
