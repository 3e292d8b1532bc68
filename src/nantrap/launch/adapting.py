"""What the adapters of frameworks share: guard whatever trains in this process between a begin and an end.

A framework owns the loop, so an adapter guards it like `nantrap run` guards a script: the framework's own
`optimizer.step()` runs, or it does not.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

from nantrap.errors import UsageError
from nantrap.guard.policy import Policy, Rollback
from nantrap.incident import Incident
from nantrap.launch.attach import Attachment, current
from nantrap.launch.script_loop import ScriptLoop
from nantrap.launch.settings import RunSettings
from nantrap.launch.summary import RunSummary, print_summary


class Options(TypedDict, total=False):
    """The keyword arguments that every adapter takes.

    Attributes:
        policy: what to check and what to do; see `nantrap.Policy`.
        run_dir: where the journal and the incidents go; a new folder below `runs/` if it is not given.
        export: exporters by name, beside the framework's own logger.
        quiet: print nothing.
    """

    policy: Policy | None
    run_dir: str | os.PathLike[str] | None
    export: Sequence[str]
    quiet: bool


_guarding: list[Adapter] = []
"""The adapters that guard this process: one, as a rule."""


class Adapter:
    """Guards this process between `begin` and `end`. Holds the attachment in between, and the last summary.

    Args:
        name: of the framework; names the run's folder if none is given.
        policy: as in `Options`, and so are the other arguments.
        run_dir: where the journal and the incidents go.
        export: exporters by name.
        quiet: print nothing.
    """

    def __init__(
        self,
        name: str,
        *,
        policy: Policy | None = None,
        run_dir: str | os.PathLike[str] | None = None,
        export: Sequence[str] = (),
        quiet: bool = False,
    ) -> None:
        if policy is not None and not isinstance(policy, Policy):
            raise UsageError(f"Guard(policy={policy!r}): expected a nantrap.Policy, such as nantrap.Policy.strict()")
        self._settings = RunSettings(
            name=name,
            own_policy=policy or Policy(max_consecutive_skips=5, then="stop", rollback=Rollback(rng="continue")),
            run_dir="" if run_dir is None else os.path.abspath(os.fspath(run_dir)),
            export=",".join(export),
            quiet=quiet,
        )
        self.summary: RunSummary | None = None
        """How the last training went."""
        self._attachment: Attachment | None = None
        self._said = False
        self._undo: list[Callable[[], Any]] = []

    @property
    def name(self) -> str:
        """The framework's."""
        return self._settings.name

    @property
    def active(self) -> bool:
        """Whether this adapter guards the process now."""
        return self._attachment is not None

    def begin(self, *, alone: bool = False) -> None:
        """Guard every optimizer of this process, also those that exist already. May be called again.

        Args:
            alone: the framework trains once at a time and does not tell of an exception: another adapter of it was left
                behind by one, and ends now.
        """
        if self.active:
            return
        for other in list(_guarding) if alone else ():
            if other.name == self.name:
                other.end()
        if current() is not None:
            if not self._said:
                self._said = True
                current().registry.say("this process is guarded already, so the framework's adapter does nothing")  # type: ignore[union-attr]
            return
        self._attachment = Attachment(self._settings)
        self._attachment.enter_living()
        _guarding.append(self)
        atexit.register(self.end)

    def guard_engine(self, engine: Any) -> None:
        """Guard an engine of DeepSpeed, also where something else guards this process already."""
        attachment = current()
        if attachment is not None:
            attachment.engines.guard(engine)

    def at_end(self, undo: Callable[[], Any]) -> None:
        """Something of the framework was changed: `undo()` restores it at the end."""
        self._undo.append(undo)

    def end(self) -> None:
        """PyTorch and the framework as they were, and the summary. May be called again."""
        attachment, self._attachment = self._attachment, None
        if attachment is None:
            return
        _guarding.remove(self)
        atexit.unregister(self.end)
        attachment.registry.record_abandoned()
        self.summary = RunSummary.of(attachment)
        attachment.detach()
        while self._undo:
            self._undo.pop()()
        found = self.summary.incidents or self.summary.evaluations or self.summary.inferences or self.summary.notes
        if found or not self.summary.state_finite:
            print_summary(self.summary, 0, self._settings)

    # ---- while it guards

    def loops(self) -> Iterator[ScriptLoop]:
        """The guards of the optimizers."""
        return iter(self._attachment.registry) if self._attachment is not None else iter(())

    def record_abandoned(self) -> None:
        """A step that the loop abandoned is recorded and undone now, before anything is saved or evaluated."""
        if self._attachment is not None:
            self._attachment.registry.record_abandoned()

    def refused(self, optimizer: Any = None) -> bool:
        """Whether the last step was refused: of one optimizer, or of any."""
        return any(loop.refused for loop in self.loops() if optimizer is None or loop.optimizer is optimizer)

    def incidents(self) -> int:
        """How many incidents there were so far."""
        return sum(loop.tally.incidents for loop in self.loops())

    def last_incident(self) -> Incident | None:
        """The last incident of any optimizer."""
        found = [loop.last_incident for loop in self.loops() if loop.last_incident is not None]
        return max(found, key=lambda incident: incident.step) if found else None

    def set_position(self, *, epoch: int, batch: int | None = None) -> None:
        """Where the framework's loop is, for journal and messages; without a batch, the data loader counts."""
        for loop in self.loops():
            progress = loop.session.progress
            progress.epoch = progress.framework_epoch = epoch
            if batch is not None:
                progress.batch = progress.framework_batch = batch

    def continue_at(self, step: int) -> None:
        """The framework has restored a run that had made this many steps: they are counted on from there."""
        for loop in self.loops():
            loop.continue_at(step)

    def log_eval(self, metrics: Mapping[str, Any]) -> None:
        """Record the results of an evaluation in the journal; values that are not numbers are left out."""
        numbers: dict[str, float] = {}
        for name, value in metrics.items():
            with contextlib.suppress(TypeError, ValueError, RuntimeError):
                numbers[str(name)] = float(value)
        for loop in self.loops():
            if numbers:
                loop.session.recorder.log_eval(loop.session.progress.step, numbers)
            break  # one line is enough, in the journal of the first optimizer

    def bad_state(self) -> list[str]:
        """The names of guarded values that are not finite now."""
        return self._attachment.bad_state() if self._attachment is not None else []

    def say(self, text: str) -> None:
        """Print a line, unless the run is quiet."""
        if self._attachment is not None:
            self._attachment.registry.say(text)

    def may_save(self, what: str, save: Callable[[], Any]) -> Any:
        """Run a save of the framework, unless the state is not finite: then the last good file stays."""
        self.record_abandoned()
        bad = self._bad_on_any_rank()
        if bad and not self._settings.observes:
            if all(loop.session.ranks.prints for loop in self.loops()):
                self.say(f"{what} is not saved: {bad[0]} is not finite; the last good checkpoint stays")
            return None
        return save()

    def _bad_on_any_rank(self) -> list[str]:
        """What is not finite. Of shards, which all ranks save together, every rank gets the same answer."""
        bad = self.bad_state()
        for loop in self.loops():
            ranks = loop.session.ranks
            if ranks.acquainted and not ranks.replicated:
                bad = sorted({name for names in ranks.share(bad[:20]).values() for name in names})
        return bad
