"""The step that is being collected: its forward passes as they are seen, and its backward passes.

In the two-line form and under `nantrap run` the guard sees a step by hooks of the model, and what is needed to run
a forward pass again is noted there. `attempt` knows all of it beforehand, and the hooks do nothing.
"""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from operator import is_, itemgetter
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.jit import ScriptModule

from nantrap import finite
from nantrap.guard.driver import Driver
from nantrap.guard.dropping import drop_bad_terms, heads_of, judge_micro_batch, left_out
from nantrap.guard.evaluations import Evaluations
from nantrap.guard.progress import EXPLAINED_AFTER
from nantrap.guard.session import Session
from nantrap.guard.torch_private import (
    autocast_state,
    has_compiled_part,
    inside_transform,
    is_any_autocast_on,
    without_transforms,
)
from nantrap.guard.window import MOST_WHOLE, LossLike, Micro, Window
from nantrap.incident.wording import some_of
from nantrap.locate import RngState, RootCall, clear_probes, tensors_of
from nantrap.locate.failure import active_replays, is_replaying
from nantrap.locate.hooks import Hook
from nantrap.locate.probes import forget_probes_of, keep_probes_for, pending_probes
from nantrap.locate.python_private import current_frame
from nantrap.locate.replay.root_call import note_loss_part
from nantrap.locate.source import is_user_code
from nantrap.locate.torch_private import NO_PASS, backward_pass, is_recomputed_later
from nantrap.locate.trace.storage import share_memory
from nantrap.locate.twoline.autopsy import examine
from nantrap.locate.twoline.caller import keep_leaves
from nantrap.locate.wrapping import arguments_by_name, callable_parts, is_container

_parameters_of = itemgetter("params")
_INPUTS_KEPT = 8
_INPUT_BYTES = 4 * 2**20


class Collector:
    """Collects one step after another. Holds the open window, the model's last call, and the hooks.

    Args:
        model: the model as it is called.
        session: of the run.
        driver: who makes the update.
        before_pass: called before a forward pass is noted; a script's loop may return False.
        of_guard: says that the guard is at work meanwhile.
    """

    def __init__(
        self,
        model: nn.Module,
        session: Session,
        driver: Driver,
        *,
        before_pass: Callable[[nn.Module], bool] | None = None,
        of_guard: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.window: Window | None = None
        """The step whose backward passes have begun."""
        self.root_call: RootCall | None = None
        """The model's last call that has had no backward pass yet."""
        self.begun = False
        """A forward pass of the step was seen."""
        self.attempting = False
        """A whole step is being attempted: its batch and its function are known, hooks note nothing."""
        self.call_left: weakref.WeakMethod[Callable[[RootCall, tuple[CodeType, int] | None], None]] | None = None
        """Called before a forward pass if the one before it has had no backward pass."""
        self.precision_unknown = True
        """No forward pass in training was seen yet."""
        self.carried: CarriedStates | None = None
        """What may come back from a step that was not made, until the next call."""
        self.session = session
        self.before_pass = before_pass
        self._driver = driver
        self._apart = driver.owns_gradients and session.drops_micro_batches
        self._reads_losses = bool(session.at_once)
        self._drops_terms = session.policy.bad_terms == "drop"
        self._graphs_kept: bool | None = None
        self.together = session.ranks.together
        """Other ranks train the same model."""
        self._parts_watched = False
        self._early: dict[int, nn.Module] = {}  # held, so that no other module gets their numbers
        self._handles: list[Any] = []
        self.evaluations = Evaluations(lambda _: session, "evaluation", of_guard=of_guard)
        """The model's calls without gradients."""
        self.inputs: deque[list[Tensor]] = deque(maxlen=_INPUTS_KEPT)
        """What the model was called with in the last good steps, by reference: the usual range, should a batch fail."""
        self.stream = torch.get_rng_state()
        """torch's random stream at the end of the last step: the loss function may draw before the model."""
        weakref.finalize(self, session.armed.stop)  # a step that ended with an exception leaves its trace running
        keep_probes_for(self)
        self._watch(model)
        if is_container(model):
            self._watch_parts()
        for _, module in session.protected.members.also:
            self.watch_beside(module)
        if not isinstance(session.protected.root, ScriptModule):
            self._handles.append(session.protected.root.register_load_state_dict_post_hook(Hook(self.after_load)))

    def after_load(self, _: nn.Module, keys: Any) -> None:
        """A state dict was loaded into the model: note what of it is not finite, before other code writes it. One with
        missing keys does not say what was written."""
        if is_replaying():  # what a replay loads is restored after it
            return
        protected = self.session.protected
        if not self.begun:  # what was loaded is the script's, finite or not
            protected.ledger.take_over()
        if keys.missing_keys:
            self.session.progress.loaded = None
            return
        named = [*protected.members.named(), *protected.root.named_buffers()]
        self.session.progress.loaded = frozenset(name for name, tensor in named if finite.any_nonfinite([tensor]))

    def close(self) -> None:
        """Remove every hook, and end a trace that is running."""
        self.session.armed.stop()
        self.evaluations.close()
        self.session.sampler.end()
        forget_probes_of(self)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    # ---- forward passes

    def take_root_call(self) -> RootCall | None:
        """The model's call that led to a loss, once."""
        call, self.root_call = self.root_call, None
        each = call
        while each is not None:
            each.frames, each = (), each.previous
        if call is None and not self._parts_watched:  # the model's parts are called, not the model
            self._watch_parts()
        return call

    def note_precision(self) -> None:
        """The first forward pass shows whether the step is computed under autocast."""
        self.precision_unknown = False
        if is_any_autocast_on() and (autocast := autocast_state()) is not None:
            self.session.recorder.note_autocast(finite.dtype_name(autocast[1]))

    def note_refused(self, call: RootCall | None) -> None:
        """A step is not made: a state that its forward pass gave must not go into the next one."""
        if call is not None and self.session.policy.on_incident != "observe":
            self.carried = carried_states(call)

    def restore_carried(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """The model is called for the first time after a step that was not made."""
        states, self.carried = self.carried, None
        assert states is not None
        if states.module is module and (names := states.restore(args, kwargs)):
            self.session.recorder.say(
                f"step {self.session.progress.step:,}: {some_of(names)} of the model is a state that the loop carries, "
                "and the step before made it non-finite; that step was not made, so the state was restored as well"
            )

    def leave_call(self, place: tuple[CodeType, int] | None) -> None:
        """A forward pass begins, at this place or in an evaluation, and the last one had no backward pass."""
        left = None if self.call_left is None else self.call_left()
        if left is not None and self.root_call is not None:
            left(self.root_call, place)

    # ---- the step

    def begin(self) -> None:
        """Before the first forward pass of a step, of which there may be several (real and fake, two views)."""
        self.begun = True
        session = self.session
        if session.armed.on:
            if self.attempting:
                session.armed.stop()
            else:
                session.armed.begin_step()
        if self._early:
            self._early.clear()
        else:
            session.protected.begin()
        step = session.progress.step
        if step >= session.sampler.due:
            session.sampler.begin(step)
        if session.ranges is not None:
            session.ranges.begin()
        # after bad steps in a row an anchor would hold the state that the run must leave
        if step >= session.recovery.anchors.due and not session.ladder.in_a_row:
            session.recovery.anchors.begin_step(step)
        if session.armed.on:
            session.armed.go_on()

    def begin_inside_transform(self) -> None:
        """The model is called inside `torch.func.grad` or `vmap`: such a call cannot be noted, but it begins a step."""
        if not self.begun:
            with without_transforms():
                self.begin()

    def watch_beside(self, module: nn.Module) -> None:
        """A module beside the model takes part in the step. One that is called first (a teacher) begins the step."""
        if not isinstance(module, ScriptModule):
            self._handles.append(module.register_forward_pre_hook(Hook(self._before_beside)))

    def _before_beside(self, module: nn.Module, args: Any) -> None:
        """What is there now is what a refused step goes back to, unless the step has begun.

        A module that is called once more before the model is not part of a step: the first call was an evaluation.
        """
        if not (is_compiling() or self.begun or self.attempting or active_replays) and module.training:
            with without_transforms() if inside_transform() is not None else contextlib.nullcontext():
                self.begin_early(module)

    def begin_early(self, module: nn.Module) -> None:
        """The step begins with the call of a module beside the model."""
        if not self._early or id(module) in self._early:
            self._early.clear()
            self.session.protected.begin()
        self._early[id(module)] = module

    def open(self) -> Window:
        """The window of the step, made now if this is its first backward pass.

        It begins without gradients: what another loss left in these parameters is not part of it.
        """
        window = self.window
        if window is None:
            owns = self._driver.owns_gradients
            protected = self.session.protected
            owned = list(chain.from_iterable(map(_parameters_of, protected.optimizer.param_groups)))
            known = protected.members.owned
            if len(owned) != len(known) or not all(map(is_, owned, known)):
                protected.refresh()
            if owns:
                for parameter in protected.members.parameters:
                    parameter.grad = None
            window = self.window = Window(time.perf_counter(), not owns)
        return window

    def before_micro(self) -> None:
        """Before the forward pass of another micro-batch: the last one is judged by itself."""
        window = self.window
        if window is not None and self._apart and window.has_unjudged:
            judge_micro_batch(self.session, self._driver, window)

    def add(self, micro: Micro, *, given: LossLike, retain_graph: bool = False) -> None:
        """Backward of one micro-batch."""
        window = self.window
        if window is None:
            window = self.open()
        elif self._apart and window.has_unjudged:
            # its forward pass was not seen (a submodule was called instead of the model): the buffers have moved on
            judge_micro_batch(self.session, self._driver, window, buffers=False)
        window.micros.append(micro)
        if len(window.micros) > MOST_WHOLE:
            window.release_earlier()
        loss = micro.loss
        total = loss.total
        recorder = self.session.recorder
        if recorder.tally.steps_without_gradient == EXPLAINED_AFTER:
            recorder.explain_no_gradient(total, self.session.protected.members.parameters)
        if self._reads_losses and (reads_at_once(total) or (self._drops_terms and loss.terms)):
            micro.values = values = finite.read(loss.scalars()) if loss.terms else [finite.value_of(total)]
            good = math.isfinite(values[0]) if len(values) == 1 else not micro.bad
            if not good:
                if self._drops_terms:
                    drop_bad_terms(self.session, window, micro, given)
                if micro.bad:
                    try:
                        micro.evidence = examine(micro.loss.total, micro.root_call)
                    except BaseException:  # Ctrl+C
                        self.session.protected.restore_interrupted()
                        raise
                total = micro.loss.total
            elif micro.forward is None:
                micro.evidence = note_loss_part(total, micro.root_call)
        elif micro.forward is None:
            micro.frames = keep_leaves()
        if micro.factor != 1.0:
            total = total * micro.factor
        scaling = self._driver.scaling
        if scaling.enabled:
            total = scaling.scaler.scale(total)
        if self.together:
            self.tell_ranks(window)
        if not self._drops_terms or not loss.terms:
            total.backward(retain_graph=retain_graph)
            return
        assert isinstance(given, Mapping)
        if len(micro.values or ()) > 2 and self._keeps_graphs(total):
            micro.given, retain_graph = given, True
        with left_out(heads_of(given), micro.absent) if micro.absent else contextlib.nullcontext():
            total.backward(retain_graph=retain_graph)

    def tell_ranks(self, window: Window) -> None:
        """Before a backward pass: what the averaged gradients would not show is signalled with them, if need be."""
        ranks = self.session.ranks
        if ranks.silent and (any(micro.bad for micro in window.micros) or self._has_bad_buffers()):
            ranks.averaged.signal()

    def _has_bad_buffers(self) -> bool:
        protected = self.session.protected
        largest = protected.ledger.largest() if protected.has_buffers else None
        if largest is None or math.isfinite(finite.value_of(largest)):
            return False
        return protected.ledger.any_bad()

    def _keeps_graphs(self, total: Tensor) -> bool:
        """Whether graphs are kept until the step is judged, so that its terms can be run backward one by one.

        Other ranks could not know which terms this one leaves out, and a compiled backward pass frees its memory.
        """
        if self._graphs_kept is None:
            alone = self._driver.owns_gradients and self._reads_losses and not self.together
            self._graphs_kept = alone and not has_compiled_part(total)
        return self._graphs_kept

    def end(self) -> None:
        """The step is over, applied or not."""
        window = self.window
        due = len(self.inputs) < _INPUTS_KEPT or not self.session.progress.step & 7  # enough to know what is usual
        if window is not None and due and not self.attempting and not self.session.ladder.in_a_row:
            for micro in window.micros:
                call = micro.root_call
                if call is not None:
                    inputs: list[Tensor] = []
                    self.inputs.append(inputs)
                    for value in (*call.args, *call.kwargs.values()):
                        if not isinstance(value, Tensor) or value.layout is not torch.strided:
                            continue  # a sparse tensor does not tell its size
                        if value.is_floating_point() and value.nbytes <= _INPUT_BYTES:
                            inputs += () if value.requires_grad else (value,)  # a graph must not be kept
        if self.session.sampler.running:
            for words in self.session.sampler.end():
                self.session.recorder.say(words)
        self.window = None
        self.begun = False
        if not self.attempting:
            self.stream = torch.default_generator.get_state()
        self.session.protected.end()
        if not self.session.ladder.in_a_row:  # after a refused step the weights are still those that were loaded
            self.session.progress.loaded = None
        if self.together:
            self.session.ranks.end_step()
        if pending_probes:
            clear_probes()
        if self.session.armed.on:
            self.session.armed.start()

    def _watch_parts(self) -> None:
        """The model's parts are called instead of the model."""
        self._parts_watched = True
        for part in callable_parts(self.session.protected.root):
            self._watch(part)

    def _watch(self, module: nn.Module) -> None:
        if isinstance(module, ScriptModule):
            return  # it takes no hooks: a step is seen at its backward pass
        # before the program's own hooks: what they change is changed again when the call is repeated. Those that bring
        # the shards of a model together come first
        first = self.session.setup.shards is None
        self._handles.append(module.register_forward_pre_hook(_Before(self), with_kwargs=True, prepend=first))
        self._handles.append(module.register_forward_hook(_After(self)))


class _Before(Hook):
    """Before a module is called: note what is needed to call it again.

    The hook belongs to the guard and not to the model: a copy of the model does not get it.
    """

    __slots__ = ("_collector",)

    def __init__(self, collector: Collector) -> None:
        super().__init__()
        self._collector = weakref.ref(collector)

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Note inputs, random streams and calling line, unless the call is no part of a step."""
        collector = self._collector()
        if collector is None or is_compiling():  # a compiled step: tracing this would break its graph
            return
        if backward_pass() != NO_PASS:
            return  # activation checkpointing computes a forward pass again: it is part of a step that is noted
        session = collector.session
        if collector.precision_unknown and module.training:
            collector.note_precision()
        if collector.together and not active_replays:
            session.ranks.note_forward(module)
        recorded = torch.is_grad_enabled() or is_recomputed_later()
        if collector.attempting or active_replays or not recorded:
            if session.armed.on and collector.begun and not active_replays and not module.training:
                session.armed.stop()  # an evaluation in the middle of a step is no part of it; a teacher's pass is
            if collector.root_call is not None and not (collector.attempting or active_replays or module.training):
                collector.leave_call(None)
            if not (recorded or collector.attempting or active_replays):
                collector.evaluations.begin(module, args, kwargs)
            return
        earlier = collector.root_call
        if earlier is not None and earlier.running and earlier.module is not module:
            return  # a part of the model, inside the model's own call
        if collector.before_pass is not None and not collector.before_pass(module):
            return
        if inside_transform() is not None:
            collector.begin_inside_transform()
            return
        if not collector.begun:
            collector.begin()
        if collector.window is not None:
            collector.before_micro()
        if session.ranges is not None:
            session.ranges.check(arguments_by_name(module, args, kwargs))
        if collector.carried is not None:
            collector.restore_carried(module, args, kwargs)
        autocast = autocast_state() if is_any_autocast_on() else None
        frame: FrameType | None = current_frame()
        while frame is not None and not is_user_code(frame.f_code):
            frame = frame.f_back
        called_at = None if frame is None else (frame.f_code, frame.f_lasti)
        if earlier is not None:
            collector.leave_call(called_at)
        program = session.protected.program
        if program.rest:
            program.rest -= 1
            rng = RngState.capture()
        else:
            rng = RngState.capture(session.protected.note_program())
        redirected = session.protected.root.__dict__.get("forward")
        call = RootCall(args, kwargs, rng, autocast, module, called_at, collector.stream, redirected)
        call.before = collector.inputs
        if collector.call_left is not None and module.training:
            call.frames = (frame, None if frame is None else frame.f_back)
        if earlier is not None:
            call.after(earlier)
        collector.root_call = call


class _After(Hook):
    """The call has ended: note where the model's part of the graph ends."""

    __slots__ = ("_collector",)

    def __init__(self, collector: Collector) -> None:
        super().__init__()
        self._collector = weakref.ref(collector)

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        collector = self._collector()
        if collector is None or collector.attempting or is_compiling():
            return
        call = collector.root_call
        if call is not None and call.running and call.module is module and not active_replays:
            call.watch_output(output)
        elif not torch.is_grad_enabled() and not active_replays:
            collector.evaluations.end(module, output)


def reads_at_once(loss: Tensor) -> bool:
    """On a CPU there is no device to wait for, so the loss is read before backward frees its graph."""
    return loss.device.type == "cpu"


# ---- a state that the loop carries from step to step


@dataclass(frozen=True, slots=True)
class CarriedStates:
    """What may come back from a step that was not made: `output, hidden = model(data, hidden)`.

    A hidden state that went bad would spoil every step after it. It is recognised when it comes back: an argument of
    the next call is non-finite, and holds the values that an output of the refused call has. The refused call was given
    the same argument, finite. A batch is never an output of the model, so it is never written. Nothing else is kept.

    Attributes:
        module: what was called.
        given: the outputs that are non-finite.
        before: the finite arguments that look like one of them, by name.
    """

    module: nn.Module
    given: list[Tensor]
    before: dict[str, Tensor]

    def restore(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        """Write the values from before the step into the states that come back from it.

        Args:
            args: with what the module is called now.
            kwargs: the same by name.

        Returns:
            The names of the arguments that were restored.
        """
        restored = []
        for name, tensor in tensors_of(arguments_by_name(self.module, args, kwargs)):
            before = self.before.get(name)
            if before is None or not _are_alike(before, tensor) or share_memory(before, tensor):
                continue
            if tensor.requires_grad or not finite.any_nonfinite([tensor]):
                continue
            if any(_is_same(tensor, output) for output in self.given):
                with torch.no_grad():
                    tensor.data.copy_(before)  # not counted as a write: a graph of the program may hold the tensor
                restored.append(name)
        return restored


def carried_states(refused: RootCall) -> CarriedStates | None:
    """The states that a call gave and that must not go into the next one; `None` if there can be none."""
    given = [output.value for output in refused.watched if output.value is not None]
    given = [value for value in given if finite.any_nonfinite([value])]
    if refused.module is None or not given:
        return None
    arguments = list(tensors_of(arguments_by_name(refused.module, refused.args, refused.kwargs)))
    if len(arguments) < 2:  # the batch alone
        return None
    before = {name: each for name, each in arguments if any(_are_alike(each, value) for value in given)}
    before = {name: each for name, each in before.items() if not finite.any_nonfinite([each])}
    return CarriedStates(refused.module, given, before) if before else None


def _are_alike(one: Tensor, other: Tensor) -> bool:
    """Whether a tensor can hold the values of another one."""
    if not (finite.is_ordinary(one) and finite.is_ordinary(other)):
        return False
    return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device


def _is_same(state: Tensor, output: Tensor) -> bool:
    """Whether a tensor is an output of the model, a view of it, or a copy that does not only hold NaN."""
    if not _are_alike(state, output):
        return False
    if share_memory(state, output):
        return True
    known = state.isfinite()
    return bool(state[known].any()) and torch.equal(state.nan_to_num(), output.nan_to_num())
