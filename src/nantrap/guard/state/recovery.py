"""Rollback: anchors in memory, checkpoints on disk, and the learning rates of a run that is rolled back.

A rollback sets the whole state back to an anchor, or to a checkpoint of the store, with lower learning rates. Every
state is used once. A run that diverges from it again has diverged twice at that place, so the next rollback takes an
older state: an older anchor, then the store's checkpoints from the newest to the oldest. The data loader is not
rewound: training continues with the next batches.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from nantrap import checkpoints, finite
from nantrap.errors import NantrapError, UsageError
from nantrap.guard.policy import Policy
from nantrap.guard.progress import Progress, Tally
from nantrap.guard.ranks.ranks import Ranks
from nantrap.guard.state.copies import Anchor, Anchors
from nantrap.guard.state.members import current_rates, scale_bases, scale_rates
from nantrap.guard.state.protected import Protected
from nantrap.guard.torch_private import local_parts
from nantrap.guard.window import Outcome
from nantrap.incident import Finding, Incident
from nantrap.incident.wording import escaped, some_of
from nantrap.locate import state_tensors

if TYPE_CHECKING:  # imported where they are used: most runs save by other means
    from nantrap.checkpoints.store.catalogue import SavedCheckpoint
    from nantrap.checkpoints.store.resume import ResumeFinding
    from nantrap.checkpoints.store.store import CheckpointStore, LoadedCheckpoint

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Saving:
    """What is saved beside the protected state, where, and how often.

    Attributes:
        model: the model as it is called.
        average: the averaged weights as the user gave them.
        store: where `save` saves.
        every: number of steps between saves; 0 for never.
        schedules: the schedules that a script steps itself. They are saved, and lowered together with the learning
            rates, but a rollback does not rewind them: the script's data are not rewound either.
    """

    model: nn.Module
    average: Any = None
    store: CheckpointStore | None = None
    every: int = 0
    schedules: Callable[[], Sequence[Any]] = tuple


def store_for(store: CheckpointStore | None, *, every: int, run_dir: str | None) -> CheckpointStore | None:
    """The store as it was given, or one in the folder of the run where the guard is to save and has none."""
    if store is None and every:
        if run_dir is None:
            raise UsageError(
                "Guard(save_every=...): a place is needed; give store=nantrap.CheckpointStore(folder), or run_dir="
            )
        store = checkpoints.CheckpointStore(Path(run_dir) / "checkpoints")
    if store is not None and not isinstance(store, checkpoints.CheckpointStore):
        raise UsageError(f"Guard(store={type(store).__name__}): expected a nantrap.CheckpointStore")
    return store


class Recovery:
    """Saves, loads and rolls back. Holds when the next save is due, and which states were used already.

    Args:
        protected: the state of the run.
        anchors: older states in memory.
        saving: what is saved, where, and how often.
        policy: how often and how far to roll back.
        ranks: the ranks that train this model.
        progress: where the run is.
        tally: what the run did so far.
    """

    def __init__(
        self,
        protected: Protected,
        anchors: Anchors,
        saving: Saving,
        *,
        policy: Policy,
        ranks: Ranks,
        progress: Progress,
        tally: Tally,
    ) -> None:
        self.store = saving.store
        self.anchors = anchors
        self.settle: Callable[[], Any] = lambda: None
        """Judges the last step, where that is not done yet: what is saved belongs to steps that are known."""
        self.acts_after_steps = bool(saving.every or policy.rollback.lr_recover_steps)
        """Whether `after_step` has anything to do."""
        self._saving = saving
        self._protected = protected
        self._policy = policy
        self._ranks = ranks
        self._progress = progress
        self._tally = tally
        self._due = saving.every
        self._used: set[str] = set()
        self._bad_buffers: dict[str, Tensor] = {}
        """The buffers by which the last refused step failed: they were bad before it."""
        self.beyond_repair = ""
        """What of the state is bad now although no older state is left, as `spoiled` last found it."""
        self._older_than: int | None = None
        self._restored_step: int | None = None
        self._lowest_factor = 1.0

    # ---- saving and loading

    @property
    def parts(self) -> dict[str, Any]:
        """What has a state, by the name of its section in a checkpoint."""
        average = self._saving.average
        if average is not None and not (hasattr(average, "state_dict") and hasattr(average, "load_state_dict")):
            averages = self._protected.averages
            average = averages[0] if averages else None  # a plain function has nothing to save
        return {
            "model": self._saving.model,
            "optimizer": self._protected.optimizer,
            "scheduler": self._protected.scheduler,
            "scaler": self.anchors.scaling.scaler,
            "ema": average,
        }

    def save(
        self,
        path: PathLike | None = None,
        *,
        data_position: Any = None,
        extras: Mapping[str, Any] | None = None,
        pin: bool = False,
    ) -> Path | None:
        """Write everything to `path`, or into the store. With several ranks the first one writes."""
        from nantrap.checkpoints.store.store import capture, save_alone

        if path is None and self.store is None:
            raise UsageError("guard.save() without a path needs a store: Guard(store=nantrap.CheckpointStore(folder))")
        self.settle()
        if self._ranks.rank:
            return None
        step = self._progress.step
        parts = self.parts
        if parts["scheduler"] is None:
            parts["scheduler"] = next(iter(self._saving.schedules()), None)
        state: dict[str, Any] = {"step": step, **capture(parts, rng=True)}
        state |= {"data_position": data_position, "extras": dict(extras or {})}
        state["guard"] = {"factor": self.anchors.factor}
        allow = self._deliberate()
        if path is not None:
            return save_alone(path, state, step=step, allow=allow)
        assert self.store is not None
        return self.store.save_state(state, step=step, pin=pin, allow=allow)

    def load(self, resume: str | int | os.PathLike[str], *, rng: bool, strict: bool) -> LoadedCheckpoint:
        """Load everything that `save` saved and continue at its step."""
        self.settle()
        if self.store is not None:
            loaded = self.store.load(resume, **self.parts, rng=rng, strict=strict)
        elif isinstance(resume, int) or resume in ("last_good", "latest"):
            raise UsageError(f"guard.load({resume!r}) needs a store: Guard(store=nantrap.CheckpointStore(folder))")
        else:
            from nantrap.checkpoints.store.store import load_alone

            state = load_alone(resume, self.parts, rng=rng, strict=strict)
            position, extras = state.get("data_position"), state.get("extras") or {}
            loaded = checkpoints.LoadedCheckpoint(Path(resume), int(state["step"]), position, extras, state)
        self.anchors.forget_after(-1)
        self.anchors.factor = float(loaded.state.get("guard", {}).get("factor", 1.0))
        self._protected.ledger.capture()
        self._progress.step = loaded.step
        self._due = self._next_due()
        self._older_than = None
        self._lowest_factor = self.anchors.factor
        return loaded

    def check_resume(
        self,
        *,
        lr: float | Iterable[float] | None,
        expected_keys: Iterable[str] | None,
        step: int | None,
        take: str,
    ) -> list[ResumeFinding]:
        """Compare what was loaded with what was configured."""
        return checkpoints.check_resume(
            model=self._protected.root,
            optimizer=self._protected.optimizer,
            scheduler=self._protected.scheduler,
            scaler=self.anchors.scaling.scaler,
            lr=lr,
            expected_keys=expected_keys,
            step=step if step is not None else self._progress.step or None,
            take=take,
            lowered_by=self.anchors.factor,
        )

    def continue_at(self, step: int) -> None:
        """The run continues at another step than it would have counted to: the script restored a state of that step."""
        self._progress.step = step
        self._due = self._next_due()

    def after_step(self, outcome: Outcome) -> None:
        """A step has ended: lowered learning rates recover, and a checkpoint is saved when one is due."""
        if not outcome.applied:
            return
        self._raise_rates()
        if self.store is None or not self._saving.every or self._progress.step < self._due:
            return
        self._due = self._next_due()
        try:
            self.save()
            self._older_than = None
        except (NantrapError, OSError) as error:
            _warn(f"step {outcome.step:,}: {error}. Training continues")

    def close(self) -> None:
        """Wait for what is still being written. An error in it becomes a warning, because other parts must still be
        closed."""
        if self.store is not None:
            try:
                self.store.wait()
            except (NantrapError, OSError) as error:
                _warn(str(error))

    # ---- rolling back

    def no_way_back(self) -> str:
        """Why a rollback is impossible, or an empty string."""
        if self._unused_anchors() or self._unused_checkpoints():
            return ""
        if self._bad_buffers and any(not anchor.rollbacks for anchor in self.anchors.candidates()):
            return f"each older state holds the same non-finite values in buffer {some_of([*self._bad_buffers])}"
        if self._tally.rollbacks:
            return "every older state was tried already"
        return "there is no older state to roll back to"

    def spoiled(self, incident: Incident) -> str:
        """`the weights are`, `the optimizer's state is`, `buffer scale is`: bad now, and finite in an older state.

        After a refused step they are so only if something else than the update wrote them. An Inf in the state may be
        an old one that takes part in nothing; a NaN does take part. A buffer counts if the step failed by it: it may
        hold -Inf by design. For bad steps only: it reads everything.

        Args:
            incident: what is known of the refused step.
        """
        self.beyond_repair = ""
        if incident.same_as is None:  # one that looks like an earlier incident has no findings of its own
            named = {f.name for f in incident.findings if _is_bad_buffer(f)} if incident.phase == "state" else set()
            buffers = self._protected.root.named_buffers() if named else ()
            self._bad_buffers = {name: buffer for name, buffer in buffers if name in named}
        if finite.any_nonfinite(self._protected.members.parameters):
            bad = "the weights are"
        elif any(map(_has_nan, self._own_state())):
            bad = "the optimizer's state is"
        elif self._bad_buffers:
            bad = f"buffer {min(self._bad_buffers)} is"
        else:
            return ""
        if self._unused_anchors() or self._unused_checkpoints():
            return bad
        self.beyond_repair = bad
        return ""

    def _own_state(self) -> list[Tensor]:
        """The tensors of the optimizer's state; of sharded ones the part of this rank, since a question about the
        whole is answered by all ranks together."""
        return local_parts(list(state_tensors(self._protected.optimizer)))

    @property
    def restored_step(self) -> int | None:
        """The step whose state the last rollback restored."""
        return self._restored_step

    def roll_back(self, *, lower_rate: bool = True) -> tuple[bool, str]:
        """Roll back. Returns whether it was possible, and what was done, in words. Every rank calls it together."""
        anchors = self.anchors
        factor = anchors.factor * (self._policy.lr_backoff if lower_rate else 1.0)
        anchor = self._common_anchor()
        if anchor is not None:
            anchor.rollbacks += 1
            with self._protected.ledger.uncounted():
                anchors.restore(anchor)
            if self._policy.rollback.rng == "restore" and anchor.rng is not None:
                anchor.rng.restore(beside=False)
            step, since, source = anchor.step, anchor.factor, ""
        else:
            with self._protected.ledger.uncounted():
                restored = self._restore_checkpoint()
            if restored is None:
                return False, "; no older state could be restored"
            loaded, since = restored
            step, source = loaded.step, f" from {loaded.path.name}"
        self._set_factor(factor, since=since)
        self._lowest_factor = factor
        self._older_than = self._restored_step = step
        anchors.forget_after(step if not source else -1, now=self._progress.step + 1, diverged=lower_rate)
        self._protected.ledger.recapture()
        self._tally.rollbacks += 1
        if len(set(self._ranks.checksums(self._protected.members.parameters, step))) > 1:
            return False, f"; the ranks hold different weights after the rollback to step {step:,}{source}"
        rates = ", ".join(f"{rate:.4g}" for rate in current_rates(self._protected.optimizer)[:3])
        return True, f"; state of step {step:,}{source}, lr now {rates}"

    def where_to_restart(self) -> str:
        """For the end of a run that was stopped: the last good checkpoint."""
        if self.store is None:
            return ""
        unused = self._unused_checkpoints()
        good = unused[0] if unused else self.store.last_good()
        if good is None:
            return escaped(f"no checkpoint was saved in {self.store.folder}", most=4000)
        note = ", from which the run diverged again" if good.path.name in self._used else ""
        return escaped(f"last good checkpoint: {good.path} (step {good.step:,}){note}", most=4000)

    # ---- parts

    def _unused_anchors(self) -> list[Anchor]:
        bad = list(self._bad_buffers.values())
        unused = [anchor for anchor in self.anchors.candidates() if not anchor.rollbacks]
        return [anchor for anchor in unused if not bad or not anchor.holds_bad(bad)]

    def _common_anchor(self) -> Anchor | None:
        """The newest anchor that no rollback has used and that is whole on every rank; all of them ask together.

        What one rank's anchor holds may have been non-finite already when it was taken, on that rank alone.
        """
        unused = {anchor.step: anchor for anchor in self._unused_anchors()}
        common = set(unused).intersection(*map(set, self._ranks.share(list(unused)).values()))
        return unused[max(common)] if common else None

    def _unused_checkpoints(self) -> list[SavedCheckpoint]:
        """The checkpoints that no rollback has used yet, the newest first: older than what was tried before."""
        if self.store is None:
            return []
        self.close()
        try:
            saved = self.store.checkpoints()
        except (NantrapError, OSError) as error:
            _warn(str(error))
            return []
        bound = self._progress.step + 1 if self._older_than is None else self._older_than
        return [s for s in saved if not s.suspect and s.path.name not in self._used and s.step < bound]

    def _restore_checkpoint(self) -> tuple[LoadedCheckpoint, float] | None:
        """Load the newest checkpoint that is whole on every rank, and the factor its learning rates carry."""
        before = self.anchors.capture(self._progress.step)
        names = [saved.path.name for saved in self._unused_checkpoints()]
        for name in self._ranks.first_of(names):
            self._used.add(name)
            loaded, reason = None, "there is no store on this rank"
            if self.store is not None:
                try:
                    own = self._ranks.rank == 0 and self._policy.rollback.rng == "restore"
                    loaded = self.store.load(self.store.folder / name, **self.parts, rng=own, fallback=False)
                except (NantrapError, OSError) as error:
                    reason = str(error)
            if self._ranks.all(loaded is not None) and loaded is not None:
                return loaded, float(loaded.state.get("guard", {}).get("factor", 1.0))
            if loaded is None:
                _warn(f"cannot roll back to {name}: {reason}")
            self.anchors.restore(before)
        return None

    def _next_due(self) -> int:
        step = self._progress.step
        return step - step % self._saving.every + self._saving.every if self._saving.every else 0

    def _deliberate(self) -> list[str]:
        """Buffers that were non-finite from the start, in the model and in its average."""
        names = self._protected.ledger.exempt_names()
        return [pattern for name in names for pattern in (f"model.{name}", f"ema.{name}", f"ema.*.{name}")]

    def _raise_rates(self) -> None:
        """Let the learning rates grow by the same factor in each applied step until they are back."""
        steps, factor = self._policy.rollback.lr_recover_steps, self.anchors.factor
        if steps and factor < 1.0:
            target = min(1.0, factor * self._lowest_factor ** (-1.0 / steps))
            self._set_factor(1.0 if target > 1.0 - 1e-9 else target, since=factor)

    def _set_factor(self, factor: float, *, since: float) -> None:
        """Put `factor` in force, in a state whose learning rates carry the factor `since`."""
        scale_rates(self._protected.optimizer, self._protected.scheduler, factor / since)
        for schedule in self._saving.schedules():  # it was not restored, so it carries the factor that was in force
            scale_bases(schedule, factor / self.anchors.factor)
        self.anchors.factor = factor


def _warn(text: str) -> None:
    warnings.warn(escaped(f"nantrap: {text}", most=4000), RuntimeWarning, stacklevel=4)


def _is_bad_buffer(finding: Finding) -> bool:
    """Whether a finding is a buffer that was bad before the step."""
    return (finding.kind, finding.phase) == ("buffer", "state")


def _has_nan(tensor: Tensor) -> bool:
    values = finite.readable(tensor)
    return values is not None and bool(values.isnan().any())
