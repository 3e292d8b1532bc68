"""`Guard`: the facade. Detects by one flag a step, contains, and hands a failed step on to be located and explained.

What happens to a step is told in `accumulate` (its micro-batches), `conclude` (its end), `rollback`, and `ledger` (what
is written down); `late` and `closure` are the two other ways to make one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.optimizer import _global_optimizer_pre_hooks

from nantrap import finite
from nantrap.errors import UsageError
from nantrap.guard.accumulate import add_micro, begin_window, drop, settle
from nantrap.guard.anchors import Anchors, Attempt
from nantrap.guard.buffers import BufferShadow
from nantrap.guard.closure import attempt_with_closure
from nantrap.guard.conclude import conclude, refuse_batch
from nantrap.guard.console import Console, summary_text
from nantrap.guard.diagnose import Diagnosis
from nantrap.guard.ema import ema_modules, ema_update
from nantrap.guard.headroom import Headroom
from nantrap.guard.keeping import Keeper, Keeping
from nantrap.guard.ladder import Ladder, Tally
from nantrap.guard.late import LateSteps
from nantrap.guard.ledger import Ledger
from nantrap.guard.loss import LossLike, as_loss
from nantrap.guard.members import Members
from nantrap.guard.outcome import Outcome
from nantrap.guard.policy import Policy
from nantrap.guard.raised import contain_exception, explain_exception, no_loss
from nantrap.guard.ranks import Agreement
from nantrap.guard.scaling import Scaling
from nantrap.guard.spikes import Spikes
from nantrap.guard.update import Update, needs_closure
from nantrap.guard.watch import Watch, WatchSpec
from nantrap.guard.window import Micro, Window
from nantrap.incident import Action, Finding, Incident
from nantrap.locate import RngState, RootCall, batch_findings, clear_probes, finding, tensors_of
from nantrap.locate.calls import watch_parts
from nantrap.locate.hooks import Hook
from nantrap.locate.source import user_place
from nantrap.locate.step import is_replaying
from nantrap.record import History

if TYPE_CHECKING:
    from nantrap.checkpoints import CheckpointStore
_guarded: weakref.WeakSet[Optimizer] = weakref.WeakSet()


def is_guarded(optimizer: Optimizer) -> bool:
    """Whether somebody made a guard for this optimizer himself, so that nobody else should."""
    return optimizer in _guarded


class Guard(Keeping):
    """Guards one model and one optimizer. Nothing non-finite reaches weights, optimizer state, buffers or averages.

    State held: the current window of micro-batches, a copy of written buffers, at most one copy of parameters and
    optimizer state (see `Policy.undo`, `Policy.anchor_every`), the last steps, and the open journal. A context
    manager; `close` removes every hook.

    Args:
        model: the model, also wrapped in `DistributedDataParallel` or `torch.compile`.
        optimizer: the optimizer of (at least) the model's parameters.
        scheduler: stepped after each applied step, and after one that a scaler leaves out while it searches its
            scale, as in the plain loop; leave it out if it is stepped once an epoch.
        scaler: a `torch.amp.GradScaler`, used in the right order: unscale, check, clip, step, update.
        ema: averaged weights, updated after each applied step: an `AveragedModel`, anything with `update()` or
            `update(model)`, or a function without arguments.
        max_grad_norm: clip to this total norm; `None` does not clip.
        policy: what to check and what to do; see `Policy`.
        run_dir: where the journal and the incidents go; `None` writes nothing.
        watch: names of parameters or buffers to follow, as patterns (`"*.alpha"`), or a dict of pattern to `Limit`.
        store: a `CheckpointStore`: where `save` saves, and what a rollback takes when the anchors are used up.
        save_every: save after every so many steps, into `store` or into `run_dir/checkpoints`; 0 for never.
        quiet: print nothing.

    Example:
        >>> import torch, nantrap
        >>> model = torch.nn.Linear(2, 1)
        >>> guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
        >>> guard.attempt(lambda batch: model(batch).square().mean(), torch.ones(4, 2)).applied
        True
    """

    _drives: ClassVar[bool] = True
    """Whether the guard makes the step itself: it clears gradients, and nothing but its own backward fills them."""

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
        store: CheckpointStore | None = None,
        save_every: int = 0,
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
                "Guard(scheduler=ReduceLROnPlateau): it needs a metric, which the guard does not have; leave it out "
                "and call scheduler.step(metric) yourself"
            )
        self._max_grad_norm = max_grad_norm
        self._members = Members(model, optimizer, owned_only=not self._drives)
        self._scaling = self._make_scaling(scaler)
        self._ema = ema
        self._ema_update = ema_update(ema, model)
        self._ema_modules = ema_modules(ema)
        self._agreement = Agreement()
        self._buffers = BufferShadow(self._members.root)
        self._update = Update(self._members, optimizer, self.policy, self._buffers)
        self._headroom = Headroom(self._members.root, every=self.policy.headroom_every)
        self._watch = Watch(watch, self._members.root)
        self._ladder = Ladder(self.policy)
        self._console = Console(quiet=quiet, rank=self._agreement.rank)
        self._spikes = Spikes(self.policy)
        self._anchors = Anchors(
            self._members.parameters,
            optimizer,
            [self._members.root, *self._ema_modules],
            scheduler=scheduler,
            scaling=self._scaling,
            ema=ema,
            buffers=self._buffers,
            every=self.policy.anchor_every if self.policy.sync == "step" else 0,
            limit_bytes=self.policy.anchor_bytes,
        )
        self._late = LateSteps(self) if self.policy.sync == "late" else None
        self._closure_optimizer = needs_closure(optimizer)
        # the others could not know which micro-batch one rank drops
        self._drops_micro_batches = (
            self.policy.micro_batches == "drop"
            and self.policy.on_incident == "skip"
            and self._late is None
            and self._agreement.world_size == 1
        )
        self._diagnosis = Diagnosis(self)
        self._ranks_differ = False
        self._step = 0
        self._window: Window | None = None
        self._root_call: RootCall | None = None
        self._parts_watched = False
        self._begun = False
        self._attempting = False
        self._closed = False
        self._ledger = Ledger(self, run_dir)
        self._keeper = Keeper(self, store, save_every)
        if self._drives:
            _guarded.add(optimizer)
        self._hooks = [
            model.register_forward_pre_hook(Hook(self._before_forward), with_kwargs=True),
            model.register_forward_hook(Hook(self._after_forward)),
        ]

    @property
    def history(self) -> History:
        """The last steps, as the journal has them."""
        return self._ledger.history

    @property
    def tally(self) -> Tally:
        """What the run did so far, in numbers."""
        return self._ledger.tally

    @property
    def last_incident(self) -> Incident | None:
        """The last incident of the run."""
        return self._ledger.last_incident

    # ---- the two-line form

    def backward(self, loss: LossLike, *, retain_graph: bool = False) -> None:
        """What was `loss.backward()`. Call it once for each micro-batch of the step.

        The first call of a step begins without gradients: what another loss (the generator's) left in these
        parameters takes no part.

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
        micro = Micro(as_loss(loss), root_call=self._take_root_call())
        add_micro(self, micro, given=loss, retain_graph=retain_graph)

    def step(self) -> Outcome:
        """What was clip, scaler, `optimizer.step()`, `scheduler.step()` and `zero_grad()`."""
        self._require_open()
        window = self._window
        if window is None:
            raise UsageError("guard.step() without guard.backward(loss) before it: there is no gradient to step on")
        try:
            outcome = conclude(self, window) if self._late is None else self._late.step(window)
            self._keeper.after_step(outcome)
            return outcome
        finally:
            self._end_step()

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
        self._begun = False  # a forward pass before this one, if there was any, was not part of the step
        self._begin_step()
        rng = RngState.capture()
        batches = (batch, *more)
        try:
            if self._closure_optimizer:
                done = attempt_with_closure(self, fn, batch, rng, more)
                self._keeper.after_step(done)
                return done
            refused: frozenset[int] = frozenset()
            if self.policy.check_batch and self.policy.on_incident != "observe":
                early, refused = self._check_batches(batches)
                if early is not None:
                    return early
            for index, micro_batch in enumerate(batches):
                if index in refused:
                    continue
                self._before_micro()
                before = RngState.capture() if index else rng
                versions = {path: t._version for path, t in tensors_of(micro_batch) if not t.is_inference()}
                try:
                    given = fn(micro_batch)
                except Exception as error:
                    micro = Micro(no_loss(), 1.0, micro_batch, fn, before, versions=versions, values=[])
                    outcome = contain_exception(self, error, micro)
                    if outcome is None:
                        raise
                    return outcome
                micro = Micro(as_loss(given), 1.0 / len(batches), micro_batch, fn, before, versions=versions)
                add_micro(self, micro, given=given)
            outcome = self.step()
            attempt = Attempt(outcome.step, lambda b: as_loss(fn(b)).total, batches, rng, outcome.applied)
            self._anchors.remember(attempt)
            return outcome
        finally:
            self._attempting = False
            self._end_step()

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
        farewell = self._keeper.farewell()
        return summary_text(self.tally, run_dir=self.run_dir) + (f"\n{farewell}" if farewell else "")

    def close(self) -> None:
        """Remove every hook, write the journal, print the summary if anything happened. May be called again."""
        if self._closed:
            return
        self._closed = True
        for hook in self._hooks:
            hook.remove()
        try:
            if self._late is not None:
                self._late.settle()
        finally:
            self._ledger.close()
            self._keeper.close()
            self._say_farewell()

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if error is not None:
                explain_exception(self, error)
        finally:
            self.close()

    # ---- what a guard that does not drive its loop does otherwise

    def _say_farewell(self) -> None:
        if self.tally.incidents or self.tally.dropped_micro_batches:
            self._console.say(self.summary())

    def _repeat_update(self) -> None:
        """An update that was undone to be looked at is taken again: the scaler's step is behind us."""
        self.optimizer.step()

    def _name_samples(self, incident: Incident, micro: Micro) -> Incident:
        """The incident with the data set's own indices, where somebody knows them."""
        return incident

    def _known_incident(self, micro: Micro) -> Incident | None:
        """The incident of another guard that saw the same loss."""
        return None

    def _remember_incident(self, micro: Micro, incident: Incident) -> None:
        """For another guard that sees the same loss."""

    def _make_scaling(self, scaler: Any) -> Scaling:
        return Scaling(scaler, self.optimizer, self.policy)

    def _gradient_norm(self) -> Tensor:
        """The total norm of the gradients as they stand, on their device."""
        return finite.gradient_norm(self._members.gradients())

    def _norm_is_used(self) -> bool:
        """Whether somebody may clip by the norm, the guard or a hook of the optimizer."""
        hooks = getattr(self.optimizer, "_optimizer_step_pre_hooks", None)
        return self._max_grad_norm is not None or bool(hooks) or bool(_global_optimizer_pre_hooks)

    # ---- the beginning of a step

    def _take_root_call(self) -> RootCall | None:
        """The model's call that led to a loss, once."""
        if self._root_call is None and not self._parts_watched:  # the model's parts are called, not the model
            self._parts_watched = True
            self._hooks += watch_parts(self._members.root, self._before_forward, self._after_forward)
        call, self._root_call = self._root_call, None
        return call

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._attempting or is_replaying() or not torch.is_grad_enabled():
            return
        earlier = self._root_call
        if earlier is not None and earlier.running and earlier.module is not module:
            return  # a part of the model, inside the model's own call
        self._begin_step()
        self._before_micro()
        place = user_place(sys._getframe(1))
        call = RootCall(args, kwargs, RngState.capture(), _autocast_state(), module=module, place=place)
        call.after(earlier)
        self._root_call = call

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        call = self._root_call
        if call is not None and call.module is module and not self._attempting and not is_replaying():
            call.watch_output(output)

    def _begin_step(self) -> None:
        """Before the first forward pass of a step, of which there may be several (real and fake, two views)."""
        if not self._begun:
            self._begun = True
            self._buffers.adopt()  # whatever was written since the last step was written by the user
            self._headroom.begin(self._step)
            if not self._ladder.in_a_row:  # amid a bad row an anchor would hold the very state to get away from
                self._anchors.begin_step(self._step)

    def _before_micro(self) -> None:
        if self._window is not None and self._window.unsettled and self._drops_micro_batches:
            settle(self, self._window)

    def _end_step(self) -> None:
        self._window = None
        self._begun = False
        clear_probes()

    def _check_batches(self, batches: tuple[Any, ...]) -> tuple[Outcome | None, frozenset[int]]:
        """`Policy.check_batch`: refuse the step, or drop the bad micro-batches, before anything is computed."""
        found = [batch_findings(batch) for batch in batches]
        bad = [index for index, findings in enumerate(found) if findings]
        verdict = self._agreement.decide(origin=bool(bad), harmful=bool(bad))
        if not verdict.bad:
            return None, frozenset()
        window = begin_window(self)
        if not self._drops_micro_batches or len(bad) == len(batches):
            return refuse_batch(self, window, [f for findings in found for f in findings], verdict), frozenset()
        for index in bad:
            incident = self._diagnosis.bad_batch(self._step, found[index], Action.APPLY, rank=self._agreement.rank)
            drop(self, window, incident, f"micro-batch {index + 1} dropped, the others stay")
        return None, frozenset(bad)

    def _require_open(self) -> None:
        if self._closed:
            raise UsageError("this guard is closed; make a new one")


def _autocast_state() -> tuple[str, torch.dtype] | None:
    if not torch._C._is_any_autocast_enabled():
        return None
    for kind in ("cuda", "cpu"):
        with contextlib.suppress(RuntimeError):
            if torch.is_autocast_enabled(kind):
                return kind, torch.get_autocast_dtype(kind)
    return None
