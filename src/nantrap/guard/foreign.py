"""A guard for a loop it does not drive: the script calls backward, clips, scales, steps and clears as it always did.

`ForeignLoop` is told of each of these as it happens and answers in one place only: a step whose gradients, loss or
buffers are bad is not taken. What the script does afterwards (clear, log, schedule) is the script's own.

    script                     told                          what it does
    model(x)                   (hooks of the guard)          remembers inputs and random streams; buffers as before
    loss.backward()            backward(loss, run)           reads the loss, walks the live graph if it is bad
    clip_grad_norm_(...)       clipped(norm)                 spares a second pass over the gradients
    optimizer.step()           step(run)                     judges; runs it, or not
    scaler.step(optimizer)     step(run, scaler=...)         the same, and leaves the scaler its search for a scale
    optimizer.step(closure)    step_with_closure(...)        the same, for optimizers that evaluate the loss themselves
    optimizer.zero_grad()      cleared()                     what the script gives up takes no part any more
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from nantrap import finite
from nantrap.errors import NonFiniteError
from nantrap.guard.accumulate import begin_window, drop, reads_at_once
from nantrap.guard.closure import judge_evaluations
from nantrap.guard.conclude import conclude
from nantrap.guard.diagnose import Observed
from nantrap.guard.guard import Guard
from nantrap.guard.loss import Loss
from nantrap.guard.outcome import Outcome
from nantrap.guard.policy import Policy
from nantrap.guard.raised import no_loss
from nantrap.guard.scaling import Scaling
from nantrap.guard.snapshot import UpdateSnapshot
from nantrap.guard.window import Micro, Window
from nantrap.incident import Action, Incident
from nantrap.locate.autopsy import examine
from nantrap.locate.hooks import Hook
from nantrap.locate.losspart import note_loss_part

_SHOWN = 16


class ForeignLoop(Guard):
    """Guards what one optimizer owns, in a loop that knows nothing of it.

    State held, besides the guard's: the norm that the script's own clipping found, whether the last step was refused,
    and the error with which the guard stopped.

    Args:
        model: the outermost module that the optimizer's parameters belong to.
        optimizer: the optimizer.
        policy: what to check and what to do.
        run_dir: where the journal and the incidents go.
        quiet: print nothing.
        find_indices: from the inputs of a forward pass to the data set's indices of its samples, where they are known.
        siblings: the guards of the script's other optimizers, which may share a loss with this one.
    """

    _drives: ClassVar[bool] = False
    _scaling: ForeignScaling

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        policy: Policy,
        run_dir: str | os.PathLike[str] | None = None,
        quiet: bool = False,
        find_indices: Callable[[Any], tuple[int, ...]] | None = None,
        siblings: Sequence[ForeignLoop] = (),
    ) -> None:
        self.find_indices = find_indices
        self.siblings = siblings
        self._diagnosed: tuple[weakref.ref[Tensor], Incident] | None = None
        super().__init__(model, optimizer, max_grad_norm=None, policy=policy, run_dir=run_dir, quiet=quiet)
        self.refused = False
        self.stopped: NonFiniteError | None = None
        self._norm: Tensor | None = None
        self._micros_last_time = 1
        self._in_backward = False
        self._in_step = False

    # ---- what the script does

    def backward(self, loss: Tensor, run: Callable[[], None]) -> None:  # type: ignore[override]
        """The script's `loss.backward()`; `run` is the call itself. `loss` is without the scale of a scaler."""
        self._norm = None
        window = self._window or begin_window(self)
        micro = Micro(Loss(loss, {}), root_call=self._take_root_call())
        if reads_at_once(loss):
            micro.values = finite.read(micro.loss.scalars())
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

    def clipped(self, norm: Tensor) -> None:
        """The script clipped all gradients, and this was their norm before."""
        self._norm = norm

    def step(  # type: ignore[override]
        self, run: Callable[[], Any], *, scaler: Any = None, still_scaled: bool = False
    ) -> Any:
        """The script's `optimizer.step()` or `scaler.step(optimizer)`: `run()` if all is well, else nothing.

        Args:
            run: the call itself.
            scaler: the scaler through which it comes.
            still_scaled: the gradients are times its scale yet; a fused optimizer divides them itself.
        """
        self._refuse_if_stopped()
        window = self._seen_window()
        self._scaling.meet(scaler, still_scaled=still_scaled)
        self._scaling.take = run
        with self._stepping():
            self._ended(conclude(self, window), window)
        return self._scaling.taken

    def step_with_closure(self, run: Callable[[Callable[[], Any]], Any], closure: Callable[[], Any]) -> Any:
        """The script's `optimizer.step(closure)`; `run` takes the closure that is to be used."""
        self._refuse_if_stopped()
        optimizer = self.optimizer
        if type(optimizer).__module__.startswith("torch.optim") and not isinstance(optimizer, LBFGS):
            # it would evaluate the closure once, before anything else: here it is judged before it is used
            with torch.enable_grad():
                value = closure()
            self.step(lambda: run(lambda: value))
            return value
        return self._evaluated_step(run, closure)

    def cleared(self) -> None:
        """The script cleared the gradients. If that was in the middle of a step, the step was given up."""
        window = self._window
        if window is not None and not self._in_step:
            self._window = None
            self._norm = None
            self._forget_bad_buffers()

    @contextlib.contextmanager
    def unhooked(self) -> Iterator[None]:
        """While the model is written as a whole it carries no hook of ours."""
        taken: list[tuple[dict[int, Any], dict[int, Any]]] = []
        for module in self._members.root.modules():
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
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

    @property
    def busy(self) -> bool:
        """Whether the guard is at work: calls that come now are its own."""
        return self._in_step

    # ---- parts

    def _name_samples(self, incident: Incident, micro: Micro) -> Incident:
        call = micro.root_call
        if incident.dataset_indices or self.find_indices is None or call is None:
            return incident
        indices = self.find_indices([(each.args, each.kwargs) for each in call.chain()])
        if not indices:
            return incident
        if incident.samples and max(incident.samples) < len(indices):
            return replace(incident, dataset_indices=tuple(indices[i] for i in incident.samples))
        shown = ", ".join(map(str, indices[:_SHOWN])) + (", ..." if len(indices) > _SHOWN else "")
        return replace(incident, notes=(*incident.notes, f"the batch was made of the data set's samples {shown}"))

    def _known_incident(self, micro: Micro) -> Incident | None:
        for sibling in self.siblings:
            if sibling is not self and sibling._diagnosed is not None and sibling._diagnosed[0]() is micro.loss.total:
                return sibling._diagnosed[1]
        return None

    def _remember_incident(self, micro: Micro, incident: Incident) -> None:
        self._diagnosed = weakref.ref(micro.loss.total), incident

    def _make_scaling(self, scaler: Any) -> ForeignScaling:
        return ForeignScaling(scaler, self.optimizer, self.policy)

    def _say_farewell(self) -> None:
        """Whoever runs the script sums up."""

    def _repeat_update(self) -> None:
        if self._scaling.enabled:
            self.optimizer.step()
        else:
            self._scaling.step()

    def _norm_is_used(self) -> bool:
        return self._norm is not None or super()._norm_is_used()

    def _gradient_norm(self) -> Tensor:
        norm = super()._gradient_norm() if self._norm is None else self._norm
        scale = self._scaling.scalar() if self._scaling.still_scaled else None
        return norm if scale is None else norm / scale.to(norm.device)

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._in_backward or not torch.is_grad_enabled():  # a checkpointed part that is run once more
            return
        if self._begun:
            earlier = self._root_call
            if earlier is not None and earlier.module is module and not earlier.running:
                self._forget_bad_buffers()
            elif self._window is not None and self._window.micros:
                self._buffers.mark()
        super()._before_forward(module, args, kwargs)

    def _before_micro(self) -> None:
        """Gradients stay where they are: the script may look at them, and adds them up itself."""

    def _forget_bad_buffers(self) -> None:
        """A forward pass that led nowhere has poisoned buffers: the script skipped its bad step, as far as it could."""
        if not self._buffers or not finite.any_nonfinite(self._buffers.suspects()):
            return
        bad = [name for name, _ in self._buffers.names_of_bad()]
        if bad and self.policy.on_incident != "observe":
            self._buffers.restore(uncounted=True)
            others = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            self._console.say(
                f"step {self._step:,}: a forward pass that was not trained on left non-finite values in buffer "
                f"{bad[0]}{others}; they are as before it"
            )

    def _drops(self, window: Window) -> bool:
        """Whether a bad micro-batch can be left out: its backward pass is not run, so the others' gradients stand."""
        accumulates = bool(window.micros) or window.dropped or self._micros_last_time > 1
        return bool(accumulates) and self._drops_micro_batches

    def _drop(self, window: Window, micro: Micro) -> None:
        assert micro.values is not None
        number = len(window.micros) + window.dropped + 1
        with self._stepping(ends=False):
            observed = Observed(self._step, micro, micro.values, 0.0, rank=self._agreement.rank)
            incident = self._diagnosis.run(observed, Action.APPLY)
            drop(self, window, incident, f"micro-batch {number} left out, the others stay")
            self._buffers.restore_mark()

    def _seen_window(self) -> Window:
        """The window of the step; if no backward pass was seen, one in which only the gradients speak."""
        window = self._window or begin_window(self)
        if not window.micros and not window.dropped:
            window.micros.append(Micro(no_loss(), values=[]))
        return window

    def _refuse_if_stopped(self) -> None:
        """A script may swallow the error with which the guard stopped it: it is not let on all the same."""
        if self.stopped is not None:
            self._members.zero_gradients()
            self._buffers.restore()
            self._end_step()
            raise self.stopped

    def _ended(self, outcome: Outcome, window: Window) -> None:
        self.refused = not outcome.applied and outcome.incident is not None  # a scaler that probes goes on as ever
        self._micros_last_time = len(window.micros) + window.dropped

    @contextlib.contextmanager
    def _stepping(self, *, ends: bool = True) -> Iterator[None]:
        self._in_step = True
        try:
            yield
        except NonFiniteError as error:
            self.stopped = error
            self.refused = True
            raise
        finally:
            self._in_step = False
            if ends:
                self._norm = None
                self._end_step()

    def _evaluated_step(self, run: Callable[[Callable[[], Any]], Any], closure: Callable[[], Any]) -> Any:
        """An optimizer that evaluates the loss as often as it likes: a copy is taken, start and result are judged."""
        norms: list[Tensor] = []

        def watched() -> Any:
            value = closure()
            if not norms:
                norms.append(super(ForeignLoop, self)._gradient_norm())
            return value

        snapshot = UpdateSnapshot(self._members.parameters, self.optimizer)
        snapshot.take()
        taken = run(watched)
        window = self._seen_window()
        norm = finite.read(norms or [torch.zeros(())])[0]
        self._scaling.take = lambda: run(closure)
        with self._stepping():
            first = window.micros[0]
            first.values = finite.read(first.loss.scalars()) if first.values is None else first.values
            self._ended(judge_evaluations(self, window, first, norm, snapshot), window)
        return taken


class ForeignScaling(Scaling):
    """The script's scaler, met when it first steps. Holds the call that is to be made, and what it gave."""

    take: Callable[[], Any] | None = None
    taken: Any = None
    still_scaled: bool = False

    def meet(self, scaler: Any, *, still_scaled: bool) -> None:
        """The scaler of this step, or `None`."""
        self._scaler = scaler
        self.still_scaled = still_scaled
        self.enabled = scaler is not None and bool(scaler.is_enabled())
        self._value = None
        self.taken = None

    def unscale(self) -> None:
        """The script has done it, or its scaler will."""

    def step(self) -> None:
        """The script's own call."""
        assert self.take is not None
        self.taken = self.take()

    def update(self) -> None:
        """The script updates its scaler; here only the search for a scale has ended."""
        self.probes_in_a_row = 0

    def probe(self) -> None:
        """The scaler sees the overflow itself and skips."""
        if not self._would_leave_memory_uninitialised():
            self.step()
        self.probes_in_a_row += 1
