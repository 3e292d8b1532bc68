"""`Guard`: the facade. Checks its arguments, collects a step, and passes it to `run_step`."""

from __future__ import annotations

import operator
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from nantrap.errors import UsageError, path_argument
from nantrap.finite import size_in_bytes
from nantrap.guard.checks import check_batches, check_state
from nantrap.guard.closure import attempt_with_closure
from nantrap.guard.collect import Collector
from nantrap.guard.driver import OwnLoop
from nantrap.guard.exceptions import contain_exception, explain_exception, no_loss, note_call
from nantrap.guard.late import LateSteps
from nantrap.guard.policy import Policy
from nantrap.guard.progress import Tally
from nantrap.guard.recorder import Recorder
from nantrap.guard.script_events import DroppedLosses
from nantrap.guard.session import Session, Setup, end_run, last_turn, summary_of
from nantrap.guard.state.copies import Attempt
from nantrap.guard.state.members import ema_update
from nantrap.guard.state.protected import needs_closure
from nantrap.guard.state.recovery import Recovery
from nantrap.guard.step import run_step
from nantrap.guard.torch_private import version_of
from nantrap.guard.watching.sample_list import SampleList
from nantrap.guard.watching.watch import WatchSpec
from nantrap.guard.window import NO_TERMS, Loss, LossLike, Micro, Outcome, as_loss
from nantrap.incident import Finding, Incident
from nantrap.locate import RngState, tensors_of
from nantrap.record import History

if TYPE_CHECKING:
    from nantrap.checkpoints import CheckpointStore
    from nantrap.checkpoints.store.resume import ResumeFinding
    from nantrap.checkpoints.store.store import LoadedCheckpoint
    from nantrap.record.alerts import Alerts
    from nantrap.record.exporters import Exporter

PathLike = str | os.PathLike[str]
_guarded: weakref.WeakSet[Optimizer] = weakref.WeakSet()


is_guarded = _guarded.__contains__
"""Whether a `Guard` was made for an optimizer, so that `nantrap run` leaves it alone."""


class Guard:
    """Guards one model and one optimizer. Nothing non-finite reaches weights, optimizer state, buffers or averages.

    Call `backward` and `step` where the loop called `loss.backward()` and `optimizer.step()`, or let `attempt` make the
    whole step. A context manager: `close` removes every hook and prints the summary, which is printed at the end of
    the program otherwise.

    Args:
        model: the model, also wrapped in `DistributedDataParallel` or `torch.compile`.
        optimizer: the optimizer of (at least) the model's parameters.
        scheduler: stepped after each applied step, and after one that a scaler leaves out while it searches its
            scale, as in the plain loop; leave it out if it is stepped once per epoch.
        scaler: a `torch.amp.GradScaler`, used in the right order: unscale, check, clip, step, update.
        ema: averaged weights, updated after each applied step: an `AveragedModel`, anything with `update()` or
            `update(model)`, or a function without arguments.
        max_grad_norm: clip to this total norm; `None`, the default, does not clip.
        policy: what to check and what to do; see `Policy`.
        run_dir: where the journal and the incidents go; `None` writes nothing.
        watch: names of parameters or buffers to follow, as patterns (`"*.alpha"`), or a dict of pattern to `Limit`.
        store: a `CheckpointStore`: where `save` saves, and what a rollback takes when the anchors are used up.
        save_every: save every this many steps, into `store` or into `run_dir/checkpoints`; 0 for never.
        also: modules outside the model that take part in the step, e.g. a loss with its own buffers or parameters.
        process_group: the ranks that train this model, if neither DistributedDataParallel nor sharded parameters say so
            (gradients that the script averages itself).
        quiet: print nothing.
        export: send values and incidents elsewhere as they happen: `"tensorboard"`, `"wandb"`, `"mlflow"`,
            `"trackio"`, or an object of your own (`nantrap.record.exporters.Exporter`).
        alerts: call a command or a webhook at an incident, a rollback, a stop or a stall; see `Alerts`.
        bad_samples: a list of bad samples (`bad-samples.json` of `nantrap data`): incidents say which of their samples
            are on it, and samples that are to blame are added, so that `nantrap.without_samples` leaves them out next
            time. The batch must carry the dataset's indices (`index`, `idx`), or `set_position` must tell them.

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
        max_grad_norm: float | None = None,
        policy: Policy | None = None,
        run_dir: PathLike | None = None,
        watch: WatchSpec = (),
        store: CheckpointStore | None = None,
        save_every: int = 0,
        also: Sequence[nn.Module] = (),
        process_group: Any = None,
        quiet: bool = False,
        export: Iterable[str | Exporter] = (),
        alerts: Alerts | None = None,
        bad_samples: PathLike | SampleList | None = None,
    ) -> None:
        check_arguments(
            scheduler=scheduler, max_grad_norm=max_grad_norm, policy=policy, run_dir=run_dir, save_every=save_every
        )
        check_listeners(watch=watch, export=export, alerts=alerts)
        self.policy = policy or Policy()
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.run_dir = None if run_dir is None else os.fspath(run_dir)
        self._session = Session(
            model,
            optimizer,
            Setup(
                policy=self.policy,
                also=as_modules(also),
                scheduler=scheduler,
                scaler=scaler,
                ema=ema,
                max_grad_norm=max_grad_norm,
                run_dir=run_dir,
                watch=(watch,) if isinstance(watch, str) else watch,
                store=store,
                save_every=save_every,
                quiet=quiet,
                process_group=process_group,
                export=export,
                alerts=alerts,
                bad_samples=bad_samples,
            ),
        )
        average = ema_update(ema, model)
        self._driver = OwnLoop(
            self._session.protected,
            scaling=self._session.scaling,
            scheduler=scheduler,
            average=average,
            max_grad_norm=max_grad_norm,
        )
        self._evaluates_itself = needs_closure(optimizer)
        self._closed = False
        self._collector = Collector(model, self._session, self._driver)
        at_once = self._session.at_once
        self._late = None
        if not at_once:
            self._late = LateSteps(self._session, self._driver, self._collector, average=average)
        self._dropped = DroppedLosses(self._session, self._driver, self._collector)
        self._collector.call_left = weakref.WeakMethod(self._dropped.before_pass)
        _guarded.add(optimizer)
        # also without close(): when the guard is dropped, and at the end of the program
        self._end_run = weakref.finalize(
            self, _end, weakref.ref(self._dropped), self._session.recorder, self._session.recovery
        )

    # ---- what is known of the run

    @property
    def history(self) -> History:
        """The last steps, as the journal has them."""
        return self._session.recorder.history()

    @property
    def tally(self) -> Tally:
        """What the run did so far, in numbers."""
        return self._session.recorder.tally

    @property
    def last_incident(self) -> Incident | None:
        """The last incident of the run."""
        return self._session.recorder.last_incident

    # ---- the two-line form

    def backward(self, loss: LossLike, *, retain_graph: bool = False) -> None:
        """What was `loss.backward()`. Call it once for each micro-batch of the step.

        The first call of a step begins without gradients: what another loss (the generator's) left in these
        parameters takes no part.

        Args:
            loss: a scalar tensor, or a dict of named terms whose sum is the loss.
            retain_graph: as in `Tensor.backward`.
        """
        if self._closed:
            raise _closed_error()
        if self._evaluates_itself:
            raise UsageError(
                f"{type(self.optimizer).__name__} evaluates the loss several times per step, so it cannot be used in "
                "the two-line form; use guard.attempt(fn, batch)"
            )
        collector, dropped = self._collector, self._dropped
        plain = isinstance(loss, Tensor) and loss.requires_grad and loss.numel() == 1
        given = Loss(loss, NO_TERMS) if plain else as_loss(loss)  # type: ignore[arg-type]
        call = collector.root_call
        if dropped.pending or (call is not None and call.previous is not None):
            dropped.before_backward(given.total)
        if collector.window is not None:
            dropped.accumulates = True
        micro = Micro(given, root_call=collector.take_root_call())
        collector.add(micro, given=loss, retain_graph=retain_graph)

    def step(self) -> Outcome:
        """What was clip, scaler, `optimizer.step()`, `scheduler.step()` and `zero_grad()`."""
        if self._closed:
            raise _closed_error()
        window = self._collector.window
        if self._collector.root_call is not None and not self._collector.attempting:
            self._dropped.before_step()
        if window is None:
            raise UsageError("guard.step() without guard.backward(loss) before it: there are no gradients")
        session = self._session
        if last_turn[0]() is not session:
            session.take_turn()
        try:
            late = self._late
            outcome = run_step(session, self._driver, window) if late is None else late.step(window)
            if outcome.incident is not None and not outcome.applied and window.micros:
                self._collector.note_refused(window.micros[-1].root_call)
            if session.recovery.acts_after_steps:
                session.recovery.after_step(outcome)
            return outcome
        finally:
            self._collector.end()

    # ---- full power

    def attempt(self, fn: Callable[[Any], LossLike], batch: Any, *more: Any) -> Outcome:
        """Run one whole step: `fn(batch)` gives the loss, the guard does the rest and can run it again after a failure.

        Args:
            fn: computes the loss of a batch: a scalar tensor or a dict of named terms. After a failure it is called
                again, so it should have no lasting side effects.
            batch: anything `fn` takes.
            more: further micro-batches of the same step; each loss is divided by their number.
        """
        if self._closed:
            raise _closed_error()
        collector, session = self._collector, self._session
        if collector.window is not None:
            raise UsageError("guard.attempt inside a step that guard.backward began; call guard.step() first")
        if not callable(fn):
            raise UsageError(f"guard.attempt(fn, batch): fn computes the loss of a batch, got {fn!r}")
        collector.attempting = True
        collector.begin()
        program = session.protected.program
        if program.rest and getattr(fn, "__code__", None) in program.clean:
            program.rest -= 1
            rng = RngState.capture()
        else:
            rng = RngState.capture(session.protected.note_program(fn, batch))
        try:
            if self._evaluates_itself:
                outcome = attempt_with_closure(session, self._driver, fn, batch, rng, more)
                if session.recovery.acts_after_steps:
                    session.recovery.after_step(outcome)
                return outcome
            batches = (batch, *more)
            early, size = self._run_batches(fn, batches, rng)
            if early is not None:
                return early
            outcome = self.step()
            anchors = session.recovery.anchors
            if anchors.keeps_attempts:
                attempt = Attempt(outcome.step, lambda b: as_loss(fn(b)).total, batches, rng, outcome.applied, size)
                anchors.remember(attempt)
            return outcome
        finally:
            collector.attempting = False
            if collector.begun:
                collector.end()

    def _run_batches(
        self, fn: Callable[[Any], LossLike], batches: tuple[Any, ...], rng: RngState
    ) -> tuple[Outcome | None, int]:
        """Forward and backward pass of each micro-batch of an attempt, unless it is refused beforehand.

        Returns:
            The outcome of a step that ended before its gradients were complete, or `None`; the bytes of the batches.
        """
        collector, session = self._collector, self._session
        refused: frozenset[int] = frozenset()
        if self.policy.batches.finite and self.policy.on_incident != "observe":
            early, refused = check_batches(session, self._driver, collector, batches)
            if early is not None:
                return early, 0
        if session.ranges is not None:
            for index, batch in enumerate(batches):
                if index not in refused:
                    session.ranges.check(batch)
        factor = 1.0 / len(batches)
        size = 0
        for index, batch in enumerate(batches):
            if index in refused:
                continue
            if index:
                collector.before_micro()
                rng = RngState.capture(session.protected.note_program(fn, batch))
            versions = {}
            for path, tensor in _tensors(batch):
                if not tensor.is_inference():
                    versions[path] = version_of(tensor)
                size += tensor.nbytes if tensor.layout is torch.strided else size_in_bytes(tensor)
            try:
                given = fn(batch)
            except Exception as error:
                micro = Micro(no_loss(), 1.0, batch, fn, rng, versions=versions, values=[])
                contained = contain_exception(session, self._driver, collector, error, micro)
                if contained is None:
                    raise
                return contained, size
            plain = isinstance(given, Tensor) and given.requires_grad and given.numel() == 1
            loss = Loss(given, NO_TERMS) if plain else as_loss(given)  # type: ignore[arg-type]
            collector.add(Micro(loss, factor, batch, fn, rng, None, versions), given=given)
        return None, size

    # ---- position of the loop, and evaluation results

    def set_position(self, *, epoch: int | None = None, batch: int | None = None, samples: Iterable[int] = ()) -> None:
        """Say where the training loop is, so that journal and messages can name epoch and batch as well as the step.

        Args:
            epoch: number of the epoch.
            batch: number of the batch in the epoch.
            samples: the dataset's indices of the samples in the batch, in order, so that an incident names them.
        """
        progress = self._session.progress
        progress.samples = checked_position(epoch=epoch, batch=batch, samples=samples)
        progress.epoch, progress.batch = epoch, batch

    def log_eval(self, step: int | None, metrics: Mapping[str, float]) -> None:
        """Write the results of an evaluation into the journal.

        Args:
            step: the step they belong to; `None` for the last one.
            metrics: names and numbers, e.g. `{"val_loss": 0.31}`.
        """
        if step is not None and (isinstance(step, bool) or not isinstance(step, int)):
            raise UsageError(f"guard.log_eval(step={step!r}): expected the number of a step, or None for the last one")
        last = max(0, self._session.progress.step - 1)
        self._session.recorder.log_eval(last if step is None else step, as_metrics(metrics))

    # ---- checkpoints

    def save(
        self,
        path: PathLike | None = None,
        *,
        data_position: Any = None,
        extras: Mapping[str, Any] | None = None,
        pin: bool = False,
    ) -> Path | None:
        """Save model, optimizer, scheduler, scaler, averages, random streams and step: only if finite, in one atomic
        write.

        Args:
            path: a file (safetensors, whatever its name; an older one is replaced), or `None` for the guard's store.
            data_position: any plain value that gives the position in the data.
            extras: more to keep, by name.
            pin: in the store: never remove this one.

        Returns:
            Where it is; `None` on all ranks but the first, which do not write.

        Raises:
            NonFiniteError: something is not finite; nothing is written.
        """
        if path is not None and not isinstance(path, (str, os.PathLike)):
            raise UsageError(f"guard.save(path): path is a file name, got {path!r}")
        return self._session.recovery.save(path, data_position=data_position, extras=extras, pin=pin)

    def load(
        self, resume: str | int | os.PathLike[str] = "last_good", *, rng: bool = True, strict: bool = True
    ) -> LoadedCheckpoint:
        """Load everything that `save` saved and continue at its step; see `CheckpointStore.load`.

        Args:
            resume: `"last_good"`, `"latest"`, a step, or the path of a file.
            rng: restore the random streams.
            strict: the keys of the model must fit exactly.
        """
        loaded = self._session.recovery.load(resume, rng=rng, strict=strict)
        self._session.recorder.note_resume(loaded.step)
        return loaded

    def check_resume(
        self,
        *,
        lr: float | Iterable[float] | None = None,
        expected_keys: Iterable[str] | None = None,
        step: int | None = None,
        take: str = "restored",
    ) -> list[ResumeFinding]:
        """After states were loaded: is the learning rate the configured one, is anything missing, does it fit together?

        Args:
            lr: the configured learning rate, at its peak: what the optimizer is made with, or the `max_lr` of a
                one-cycle schedule; one number, or one for each parameter group.
            expected_keys: the keys of the model's state that was loaded; a state dict will do.
            step: the step at which the run continues.
            take: `"configured"` puts the configured learning rate in force, at the schedule's present place.
        """
        return self._session.recovery.check_resume(lr=lr, expected_keys=expected_keys, step=step, take=take)

    # ---- on demand

    def check_state(self) -> list[Finding]:
        """Check every parameter, buffer, optimizer state and averaged weight now; e.g. before an epoch.

        Prints one line unless the guard is quiet: `parameters ok before epoch 15` where `set_position` named the
        epoch, else `state ok: 12 tensors are finite`, or what is not finite.

        Returns:
            What is non-finite; an empty list means that everything is finite. Buffers that were non-finite from the
            start (masks) are not counted.
        """
        return check_state(self._session)

    def summary(self) -> str:
        """What was applied, what was skipped and why, in a few lines."""
        return summary_of(self._session.recorder, self._session.recovery, self._dropped.lines())

    def close(self) -> None:
        """Remove every hook, write the journal, print the summary if anything happened. May be called again."""
        if self._closed:
            return
        self._closed = True
        self._dropped.end()
        self._collector.close()
        try:
            if self._late is not None:
                self._late.settle(at_end=True)
        finally:
            self._end_run()
            self._session.recovery.close()

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if error is not None:
                note_call(self._session, self._collector, error)
                explain_exception(self._session, self._collector, error)
        finally:
            self.close()


def _end(known: weakref.ref[DroppedLosses], recorder: Recorder, recovery: Recovery) -> None:
    """The end of a run, also if its guard was never closed. It must hold nothing by which the guard is reached."""
    dropped = known()
    if dropped is not None:
        dropped.end()
    end_run(recorder, recovery, () if dropped is None else dropped.lines())


def _closed_error() -> UsageError:
    return UsageError("this guard is closed; make a new one")


def _tensors(batch: Any) -> Iterable[tuple[str, Tensor]]:
    """Path and tensor of everything in a batch; the usual ones, a tensor or a pair of them, without a walk."""
    if isinstance(batch, Tensor):
        return (("batch", batch),)
    if batch.__class__ is tuple or batch.__class__ is list:
        found = []
        for index, item in enumerate(batch):
            if not isinstance(item, Tensor):
                break
            found.append((f"[{index}]", item))
        else:
            return found
    return tensors_of(batch)


# ---- what is refused, by the name of the argument and with what was expected


def as_modules(also: Any) -> Sequence[nn.Module]:
    """The modules beside the model: one, or a list of them."""
    modules = [also] if isinstance(also, nn.Module) else list(also) if isinstance(also, (list, tuple)) else None
    if modules is None or not all(isinstance(module, nn.Module) for module in modules):
        raise UsageError(f"Guard(also={also!r}): expected a list of torch.nn.Module, e.g. also=[loss_module]")
    return modules


def check_listeners(*, watch: Any, export: Any, alerts: Any) -> None:
    """Refuse what cannot be followed or sent, by the name of the argument."""
    if not isinstance(watch, Iterable) or not all(isinstance(name, str) for name in watch):
        raise UsageError(f"Guard(watch={watch!r}): expected names or patterns, or a dict of pattern to Limit")
    if not isinstance(export, Iterable):
        raise UsageError(f"Guard(export={export!r}): expected names of exporters in a list, such as ['tensorboard']")
    if alerts is not None and not hasattr(alerts, "stalled_after"):
        raise UsageError(f"Guard(alerts={alerts!r}): expected nantrap.Alerts(...)")


def check_arguments(*, scheduler: Any, max_grad_norm: Any, policy: Any, run_dir: Any, save_every: Any) -> None:
    """Refuse what cannot be right, by the name of the argument."""
    if policy is not None and not isinstance(policy, Policy):
        named = f"; for this one, Policy.{policy}()" if policy in ("strict", "observe") else ""
        raise UsageError(f"Guard(policy={policy!r}): expected a nantrap.Policy{named}")
    number = isinstance(max_grad_norm, (int, float)) and not isinstance(max_grad_norm, bool)
    if max_grad_norm is not None and not (number and max_grad_norm > 0):
        raise UsageError(f"Guard(max_grad_norm={max_grad_norm!r}): expected a positive number, or None not to clip")
    if isinstance(scheduler, ReduceLROnPlateau):
        raise UsageError(
            "Guard(scheduler=ReduceLROnPlateau): it needs a metric, which the guard does not have; leave it out "
            "and call scheduler.step(metric) yourself"
        )
    if scheduler is not None and not callable(getattr(scheduler, "step", None)):
        raise UsageError(f"Guard(scheduler={scheduler!r}): expected a learning rate scheduler with a step() method")
    if run_dir is not None:
        path_argument(run_dir, "Guard", "the path of a folder as run_dir, or None to write nothing")
    if isinstance(save_every, bool) or not isinstance(save_every, int) or save_every < 0:
        raise UsageError(f"Guard(save_every={save_every!r}): expected a number of steps, or 0 for never")


def checked_position(*, epoch: Any, batch: Any, samples: Iterable[Any]) -> tuple[int, ...]:
    """Refuse a position that is no whole number. Gives the indices of the samples, which may come as a tensor."""
    for name, value in (("epoch", epoch), ("batch", batch)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise UsageError(f"guard.set_position({name}={value!r}): expected a whole number")
    try:
        return tuple(operator.index(sample) for sample in samples)
    except TypeError:
        raise UsageError(f"guard.set_position(samples={samples!r}): expected whole numbers") from None


def as_metrics(metrics: object) -> Mapping[str, float]:
    """Check what `log_eval` was given."""
    if not isinstance(metrics, Mapping):
        raise UsageError(f"guard.log_eval(step, metrics): metrics is a dict of names to numbers, got {metrics!r}")
    for name, value in metrics.items():
        try:
            float(value)
        except (TypeError, ValueError, RuntimeError):
            raise UsageError(f"guard.log_eval(step, metrics): {name}={value!r} is not a number") from None
    return metrics
