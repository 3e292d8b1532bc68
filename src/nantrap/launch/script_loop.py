"""A script's own training loop: the script calls PyTorch, and `calls` passes each call on to a `ScriptLoop`.

It has a session and uses the same `run_step` as a `Guard`. What differs is its driver: it clears no gradient and steps
no schedule; the script's own `optimizer.step()` runs, or it does not.

    the script calls           ScriptLoop method             what it does
    model(x)                   (hooks of the collector)      notes inputs and random streams; buffers as before
    loss.backward()            backward(loss, run)           reads the loss, walks the live graph if it is bad
    clip_grad_norm_(...)       driver.clipped_norm           saves a second pass over the gradients
    optimizer.step()           step(run)                     judges; runs it, or not
    scaler.step(optimizer)     step(run, scaler=...)         the same, and leaves the scaler its search for a scale
    optimizer.step(closure)    closures.step_with_closure    the same, for optimizers that evaluate the loss themselves
    optimizer.zero_grad()      clears()                      what the script abandons takes no part any more
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from nantrap import finite
from nantrap.errors import NonFiniteError
from nantrap.guard.collect import Collector
from nantrap.guard.exceptions import explain_exception, no_loss, note_call
from nantrap.guard.late import LateSteps
from nantrap.guard.progress import EXPLAINED_AFTER, Tally, no_gradient_lines
from nantrap.guard.ranks.ranks import is_sharded
from nantrap.guard.script_events import read_norm_alone
from nantrap.guard.session import Session, last_turn
from nantrap.guard.state.protected import Protected
from nantrap.guard.state.scaling import Scaling
from nantrap.guard.step import run_step
from nantrap.guard.torch_private import has_pre_hooks, version_of
from nantrap.guard.window import MOST_WHOLE, NO_TERMS, Loss, Micro, Outcome, Window
from nantrap.incident import Incident
from nantrap.launch.event_detector import EventDetector
from nantrap.launch.position import Position
from nantrap.launch.replicas import Comparison
from nantrap.launch.roots import ModuleGroup
from nantrap.launch.shared import Shared
from nantrap.locate.nodes import leaves_of, nodes_below
from nantrap.locate.replay.root_call import note_loss_part
from nantrap.locate.twoline.autopsy import examine
from nantrap.locate.twoline.caller import keep_leaves, seen_from
from nantrap.record import History


class ScriptDriver:
    """The driver of a script's own loop: the script's call is made, or it is not, and nothing else is touched.

    Holds the script's call of this step, and the norm that the script's own clipping found.
    """

    owns_gradients = False
    advances = False

    def __init__(self, protected: Protected, scaling: Scaling, *, max_grad_norm: float | None = None) -> None:
        self.scaling = scaling
        self.max_grad_norm = max_grad_norm
        """What nantrap itself clips to (`--clip`), whatever the script does."""
        self._own_norm: Tensor | None = None
        self.take_update: Callable[[], Any] = lambda: None
        """The script's own call in this step."""
        self.clipped_norm: Tensor | None = None
        """The norm before the script clipped; `None` if it did not, or if the gradients have changed since."""
        self.clipped_to: float | None = None
        """What it clipped to."""
        self.still_scaled = False
        self.known: Tensor | None = None
        self._protected = protected

    def norm(self) -> Tensor:
        """The norm that the script has found already, or the one of the gradients as they are."""
        if self.known is not None:
            known, self.known = self.known, None
            return known
        norm = self.clipped_norm
        if norm is None:
            gradients = self._protected.members.gradients()
            norm = finite.gradient_norm(gradients) if self.norm_is_used() else finite.flag_norm(gradients)
        elif norm.__class__ is not Tensor:
            norm = finite.whole_norm(norm)
        scale = self.scaling.scalar() if self.still_scaled else None
        norm = norm if scale is None else norm / scale.to(norm.device)
        if self.max_grad_norm is not None:
            self._own_norm = norm
        return norm

    @property
    def limit(self) -> float | None:
        """What `--clip` clips to, or what the script has clipped to."""
        return self.max_grad_norm if self.clipped_norm is None else self.clipped_to

    def norm_is_used(self) -> bool:
        """The script clipped by it, or `--clip` does, or a hook of the optimizer may."""
        own = self.clipped_norm is not None or self.max_grad_norm is not None
        return own or has_pre_hooks(self._protected.optimizer)

    def clip(self, norm: float) -> None:
        """Clips as `clip_grad_norm_` does; the script may have clipped before, and then the norm is taken again."""
        if self.max_grad_norm is not None and norm + 1e-6 >= self.max_grad_norm * (1 - 1e-6):
            self.clip_unread(self._own_norm)

    def clip_unread(self, norm: Tensor | None) -> None:
        """Clips by a norm that stays on the device."""
        if self.max_grad_norm is None or norm is None:
            return
        members = self._protected.members
        total = norm if self.clipped_norm is None else finite.gradient_norm(members.gradients())
        finite.clip_with_norm(members.parameters, max_norm=self.max_grad_norm, total=total)

    def probe(self) -> None:
        """The scaler sees the overflow itself and skips."""
        self.scaling.overflow()
        if not self.scaling.would_leave_memory_uninitialised():
            self._protected.result = self.take_update()

    def repeat_update(self) -> Any:
        """The update once more. The scaler's step was made already, so the optimizer steps alone."""
        return self._protected.optimizer.step() if self.scaling.enabled else self.take_update()

    def refuse_update(self, *, overflow: bool = False) -> None:
        """Every gradient to 0, in place: the script may still read them, and clears them itself."""
        if overflow:
            if self.still_scaled:
                self.scaling.scaler.unscale_(self._protected.optimizer)
            self.scaling.overflow()
        else:
            self.scaling.forget()
        self._protected.members.zero_gradients()

    def advance(self, *, applied: bool) -> None:
        """The script updates its scaler and steps its schedule itself."""

    def advance_schedule(self) -> None:
        """The script steps its schedule itself."""


class ScriptLoop:
    """Guards what one optimizer owns, in a loop of the script.

    State held: the session and the driver of a step, whether the last step was refused, and the error with which the
    guard stopped.

    Args:
        model: the outermost module that the optimizer's parameters belong to.
        session: of the run.
        shared: what all guards of the script share.
        max_grad_norm: clip to this total norm before each step, whatever the script does; `None` does not.
        checks_epochs: check the whole state before each epoch of the data loader, and print the result.
        driver: makes the step, where it is not the script's own call of an optimizer.
    """

    def __init__(
        self,
        model: nn.Module,
        session: Session,
        shared: Shared,
        *,
        max_grad_norm: float | None = None,
        checks_epochs: bool = False,
        driver: ScriptDriver | None = None,
    ) -> None:
        self.model = model
        self.session = session
        self.shared = shared
        self.optimizer = session.protected.optimizer
        self.policy = session.policy
        self.refused = False
        self.stopped: NonFiniteError | None = None
        self.comparison: Comparison | None = None
        """Compares the parameters with those of other ranks that hold the same model."""
        self.evaluating = False
        """Whether the optimizer evaluates a closure now, which clears the gradients each time."""
        self.parameters = session.protected.members.parameters
        """The guarded parameters; the list grows with the optimizer."""
        self.driver = driver or ScriptDriver(session.protected, session.scaling, max_grad_norm=max_grad_norm)
        self.collector = Collector(
            model, session, self.driver, before_pass=self._before_pass, of_guard=shared.activity.of_guard
        )
        self.is_sharded = is_sharded(model)
        """Whether each rank holds only a part of the parameters, so that no graph ends in them."""
        self.keeps_bad_gradients = session.policy.on_incident != "observe"
        """Whether gradients that are not finite are left as they are by the script's clipping: no step follows."""
        # without a module no forward pass is seen, so questions are of interest at any time
        self._always_asks = isinstance(model, ModuleGroup) and not any(True for _ in model.children())
        self.late = None
        """Makes the steps that are read one step later; `None` where each is read before its update."""
        if not session.at_once:
            self.late = LateSteps(session, self.driver, self.collector)
        self._asked = shared.asked
        self._asked.open = self._asked.open or self._always_asks
        self._activity = shared.activity
        self._batches = shared.batches
        self._position = Position(session, shared, checks_epochs=checks_epochs)
        self.detector = EventDetector(
            session,
            self.driver,
            self.collector,
            self._position,
            shared,
            reaches=self._reaches,
            always_asks=self._always_asks,
        )
        self._micros_last_time = 1
        self._in_backward = False

    @property
    def tally(self) -> Tally:
        """What the run did so far, in numbers."""
        return self.session.recorder.tally

    @property
    def last_incident(self) -> Incident | None:
        """The last incident of the run."""
        return self.session.recorder.last_incident

    @property
    def history(self) -> History:
        """The last steps, as the journal has them."""
        return self.session.recorder.history()

    # ---- what the script does

    def backward(self, loss: Tensor, run: Callable[[], None], alone: bool = True) -> None:
        """The script's `loss.backward()`.

        Args:
            loss: without the scale of a scaler.
            run: the call itself.
            alone: no other guard watches what the loss was computed from.
        """
        collector, asked = self.collector, self._asked
        self.driver.clipped_norm = None
        window = collector.window
        if window is None:
            mark = self.detector.mark
            if mark.is_counting or (mark.parameter is not None and mark.parameter.grad is mark.gradient):
                self.detector.note_uncleared(loss)
            window = collector.open()
            if self.session.recorder.tally.steps_without_gradient == EXPLAINED_AFTER:
                self.session.recorder.explain_no_gradient(loss, self.parameters)
        call = collector.root_call
        if call is None:
            call = collector.take_root_call()
        collector.root_call = None
        if call is not None and self._batches.last:
            self._position.note(call)
        progress = self.session.progress
        micro = Micro(Loss(loss, NO_TERMS), root_call=call, position=(progress.epoch, progress.batch))
        asked.open, asked.data = self._always_asks, None
        asked.trained_on = self._batches.last[-1] if self._batches.last else None
        asked.output = None
        left_out = asked.take(instead_of=loss, wanted=self._reaches) if asked.tensors else None
        if self._always_asks:
            asked.trained(loss)
        if loss.is_cpu and self.late is None:  # nothing waits: the loss is read before backward frees its graph
            value = finite.value_of(loss)
            micro.values = [value]
            if math.isfinite(value):
                if left_out:
                    if not window.micros and not self._reaches(loss):
                        self.detector.record_replaced(left_out[0], call)
                        run()
                        return
                    self._note_left_out(left_out, window, micro)
                micro.evidence = note_loss_part(loss, call)
            else:
                try:
                    self._examine(loss, micro)
                except BaseException:  # the run is interrupted: its end counts the bad loss that it has seen
                    window.micros.append(micro)
                    self.session.protected.restore_interrupted()
                    raise
                if self._drops(window, alone=alone):
                    self.detector.drop_micro_batch(window, micro)
                    return
        else:
            micro.frames = keep_leaves()
        window.micros.append(micro)
        if len(window.micros) > MOST_WHOLE:
            window.release_earlier()
        if self.evaluating and len(window.micros) == 1:  # the closure has returned when the step is judged
            self.detector.keep_frames()
        if collector.together:
            collector.tell_ranks(window)
        self._in_backward = True
        try:
            run()
        finally:
            self._in_backward = False

    def made_any_of(self, nodes: Iterable[Any]) -> bool:
        """Whether a forward pass of the model ended in any of these nodes, since the last backward pass."""
        call = self.collector.root_call
        return call is not None and any(not each.nodes.isdisjoint(nodes) for each in call.chain())

    def protect(self, module: nn.Module, *, earlier: Mapping[str, Tensor] | None = None) -> None:
        """The script calls a module beside the model (a loss with buffers, a teacher): it is restored like the model.

        Args:
            module: the module.
            earlier: copies of its buffers from before its call, if it was called before this guard was made.
        """
        protected = self.session.protected
        if not any(module is each for each in protected.root.modules()):
            if earlier is not None:
                self.collector.begin_early(module)
            protected.add(module, earlier=earlier)
        self.collector.watch_beside(module)

    def step(
        self,
        run: Callable[[], Any],
        *,
        scaler: Any = None,
        still_scaled: bool = False,
        judge: Callable[[Window], Outcome] | None = None,
    ) -> Any:
        """The script's `optimizer.step()` or `scaler.step(optimizer)`: `run()` if the step is good, else nothing.

        Args:
            run: the call itself.
            scaler: the scaler through which it comes.
            still_scaled: the gradients still carry its scale; a fused optimizer divides them itself.
            judge: what to do instead of `run_step`.
        """
        if self.stopped is not None:
            self.refuse_again()
        driver, collector, protected = self.driver, self.collector, self.session.protected
        window = collector.window
        if window is not None and self._asked.tensors:
            self.detector.record_abandoned()  # the last micro-batch of the step
        if window is not None and window.left_by_script and self.detector.record_all_left_out(window):
            collector.end()
            self.refused = self.policy.on_incident != "observe"
            return None if self.refused else run()
        if window is None or not window.micros:
            unseen = self._unseen_window()
            if unseen is None:
                return None
            window = unseen
        if window.bad_before_repair is not None:
            self.detector.record_repaired(window)
        if len(window.micros) > 1:
            self.detector.record_earlier_loss(window)
        driver.take_update, driver.still_scaled = run, still_scaled
        if last_turn[0]() is not self.session:
            self.session.take_turn()
        if scaler is not None or driver.scaling.scaler is not None:
            driver.scaling.use(scaler)
        protected.result = None
        self._activity.busy = True
        frames = self.detector.frames
        if frames:
            self.detector.frames = []
        try:
            with seen_from(frames) if frames else contextlib.nullcontext():
                if judge is None:
                    judge = functools.partial(run_step, self.session, driver) if self.late is None else self.late.step
                outcome = judge(window)
            # a step that a scaler left out, to search its scale, has no incident and was not refused
            self.refused = not outcome.applied and outcome.incident is not None
            if window.bad_left_out and outcome.applied:
                self.tally.left_out += window.bad_left_out
            if self.refused:
                self.detector.note_judged(window)
                collector.note_refused(window.micros[-1].root_call if window.micros else None)
            if self.session.recovery.acts_after_steps:
                self.session.recovery.after_step(outcome)
            if self.comparison is not None:
                self.comparison.after_step(self.tally.applied)
        except NonFiniteError as error:
            self.stopped, self.refused = error, True
            raise
        finally:
            self._activity.busy = False
            driver.clipped_norm = None
            self._asked.data = None
            collector.end()
        self._micros_last_time = len(window.micros) + window.dropped
        if self._micros_last_time > 1 and not self.detector.accumulates:
            self.detector.accumulates = _has_several_batches(window)
        mark = self.detector.mark
        mark.gradient = None
        for parameter in self.parameters if self.session.setup.shards is None else ():  # an engine clears its own
            gradient = parameter.grad
            if gradient is not None:
                mark.parameter, mark.gradient, mark.version = parameter, gradient, version_of(gradient)
                break
        return protected.result

    def clears(self) -> None:
        """The script is about to clear the gradients. In the middle of a step this abandons the step."""
        window = self.collector.window
        if window is None or self._activity.busy:
            return
        if window.dropped and not window.micros:
            return  # nothing to clear: what was left out so far is a part of the step to come
        if not self.evaluating:
            self.detector.record_cleared(window)
            self.session.recorder.finish_without_step(window)
        self.collector.window = None
        self.driver.clipped_norm = None
        if not self.evaluating:
            self._asked.data = None
            self.detector.restore_buffers()

    def bad_norm(self) -> None:
        """The script clips, and the norm is not finite: where it is now, its variables belong to the bad batch."""
        self.detector.keep_frames()

    def leave(self) -> None:
        """The script begins an evaluation, a save or its end: a forward pass without a backward pass is abandoned."""
        if not self._activity.busy:
            self.detector.record_abandoned()
            self.detector.record_left()
            self.settle()
            if self.collector.window is None:
                self.detector.restore_buffers()

    def settle(self, *, at_end: bool = False) -> None:
        """Judge the step that was launched last, where that is not done yet."""
        if self.late is None or self._activity.busy:
            return
        try:
            with self._activity.of_guard():
                self.late.settle(at_end=at_end)
        except NonFiniteError as error:
            self.stopped, self.refused = error, True
            if not at_end:
                raise

    def note_position(self) -> None:
        """The script takes the next batch before a step from the loss that it tested: note which batch this one is."""
        call = self.collector.root_call
        if call is not None and not call.running and not self._activity.busy:
            self._position.note(call)

    def end(self) -> None:
        """The script has ended: record what was found and belongs to no step."""
        if self.collector.window is not None:
            self.session.recorder.finish_without_step(self.collector.window)
        self.session.recorder.note_interrupted()

    def _reaches(self, loss: Tensor) -> bool:
        """Whether a loss was computed from what this guard watches. With one optimizer there is nothing to ask."""
        nodes = nodes_below(loss)
        ours = set(map(id, self.parameters))
        return any(id(leaf) in ours for leaf in leaves_of(nodes)) or self.made_any_of(nodes)

    def continue_at(self, step: int) -> None:
        """The script restored a state of this step: journal and messages count on from there."""
        if step > self.session.progress.step and not self.tally.attempted:
            self.session.recovery.continue_at(step)
            self.session.recorder.note_resume(step)
            self.session.recorder.say(f"the script resumes at step {step:,}")

    def explain(self, error: BaseException) -> Incident | None:
        """The script ended with an exception: report the non-finite value that caused it, if any."""
        with self._activity.of_guard():
            note_call(self.session, self.collector, error)
            if self.collector.root_call is not None and self._batches.last:
                self._position.note(self.collector.root_call, bad=True)
            found = self.collector.evaluations.explain(error)
            return found or explain_exception(self.session, self.collector, error)

    def bad_state(self) -> list[str]:
        """The names of the guarded parameters and buffers that are not finite now."""
        protected = self.session.protected
        bad = [name for name, parameter in protected.members.named() if finite.any_nonfinite([parameter.detach()])]
        return bad + [name for name, _ in protected.ledger.names_of_bad()]

    def notes(self) -> list[str]:
        """What the summary says about the training as a whole."""
        samples = self.session.recorder.samples
        added = [samples.summary()] if samples is not None and samples.added else []
        differing = []
        if self.comparison is not None:
            self.comparison.end()
            differing = [self.comparison.note] if self.comparison.note else []
        return (
            no_gradient_lines(self.tally)
            + self.collector.evaluations.lines()
            + self.detector.events.lines(applied=self.tally.applied)
            + differing
            + added
        )

    @property
    def is_in_step(self) -> bool:
        """Whether a backward pass was made whose step is still to come."""
        return self.collector.window is not None and not self._activity.busy

    def close(self) -> None:
        """Remove every hook and write the journal. May be called again."""
        self.collector.close()
        self.session.recorder.close()
        self.session.recovery.close()

    # ---- parts

    def _before_pass(self, module: nn.Module) -> bool:
        """Whether a forward pass is the script's: not a checkpointed part that backward runs once more."""
        if self._in_backward:
            return False
        collector, asked = self.collector, self._asked
        earlier = collector.root_call
        if not self._activity.busy and (earlier is None or not earlier.running):
            asked.open = self._always_asks
            self.detector.is_recorded = False
            if asked.tensors or asked.output is not None:
                self.detector.record_abandoned()
                earlier = collector.root_call
        if collector.begun:
            if earlier is not None and earlier.module is module and not earlier.running:
                if self.late is None:  # elsewhere the device judges them with the step
                    self.detector.restore_buffers()
            elif collector.window is not None and collector.window.micros and self.session.drops_micro_batches:
                self.session.protected.ledger.mark()  # where none is dropped, a bad one may have written them already
        asked.open = module.training
        asked.data = None
        return True

    def _note_left_out(self, losses: list[Tensor], window: Window, micro: Micro) -> None:
        """The script trains on another loss than these, which are not finite: an incident if it tested one of them."""
        tested = [each for each in losses if self._asked.was_read(each)]
        if tested:
            self.detector.record_other_loss(window, micro, tested[0])
        self._asked.frames = []

    def _examine(self, loss: Tensor, micro: Micro) -> None:
        """The loss of a micro-batch is not finite: note what its live graph shows, and where the script is."""
        call = micro.root_call
        if call is not None and self._batches.last:
            self._position.note(call, bad=True)
        with self._activity.of_guard():
            micro.evidence = examine(loss, call)
        self.detector.keep_frames()

    def _drops(self, window: Window, *, alone: bool) -> bool:
        """Whether a bad micro-batch can be left out: its backward pass is not run, so the others' gradients stay.

        The first loss after a step may be one of another optimizer only: a generator's loss passes through the
        discriminator, whose gradients are cleared after that.
        """
        accumulates = bool(window.micros) or window.dropped or (alone and self._micros_last_time > 1)
        return bool(accumulates) and self.session.drops_micro_batches

    def _unseen_window(self) -> Window | None:
        """The window of a step without a backward pass that was seen: it has only the gradients.

        `None` for a step that was refused and is called again: it stays refused until there are new gradients. The
        same for a step after a loss that the script abandoned: it has no gradients, and is counted as skipped already.
        """
        window, repeated = self.collector.window, False
        if window is None:
            abandoned = self.detector.record_abandoned() or self.detector.is_recorded
            self.detector.is_recorded = False
            if abandoned and not read_norm_alone(self.session, self.driver):
                self.refused = self.policy.on_incident != "observe"
                if self.refused:
                    return None
            repeated = self.detector.is_repeated_step(refused=self.refused)
            repeated = repeated or abandoned
            if repeated and self.refused:
                return None
            window = self.collector.open()
            window.repeated = repeated
        if not window.micros and not window.dropped:
            window.micros.append(Micro(no_loss(), values=[]))
        return window

    def refuse_again(self) -> None:
        """A script may catch the error with which the guard stopped it; it must not continue after that."""
        assert self.stopped is not None
        self.driver.refuse_update()
        self.session.protected.ledger.restore_buffers()
        self.collector.end()
        raise self.stopped


def _has_several_batches(window: Window) -> bool:
    """Whether the micro-batches of a step are different batches; two losses of one batch are no accumulation."""
    places = {micro.position for micro in window.micros}
    return len(places) > 1 or places <= {None, (None, None)} or bool(window.dropped)
