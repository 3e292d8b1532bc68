"""What a guard does with checkpoints: saves, loads, and goes back to them when its anchors are used up."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch.distributed as dist
from torch.optim import Optimizer

from nantrap import checkpoints
from nantrap.errors import NantrapError, UsageError
from nantrap.guard.rates import scale_rates

if TYPE_CHECKING:  # at run time where they are used: most runs save by other means
    from nantrap.checkpoints.store.catalogue import SavedCheckpoint
    from nantrap.checkpoints.store.resume import ResumeFinding
    from nantrap.checkpoints.store.store import CheckpointStore, LoadedCheckpoint
    from nantrap.guard.guard import Guard
    from nantrap.guard.outcome import Outcome

PathLike = str | os.PathLike[str]


class Keeper:
    """Holds the store, when the next save is due, and which checkpoints were gone back to in vain."""

    def __init__(self, guard: Guard, store: CheckpointStore | None, every: int) -> None:
        if every < 0:
            raise UsageError(f"Guard(save_every={every!r}): a number of steps, or 0 for never")
        if store is None and every:
            if guard.run_dir is None:
                raise UsageError(
                    "Guard(save_every=...): where to? Give store=nantrap.CheckpointStore(folder), or run_dir="
                )
            store = checkpoints.CheckpointStore(Path(guard.run_dir) / "checkpoints")
        if store is not None and not isinstance(store, checkpoints.CheckpointStore):
            raise UsageError(f"Guard(store={type(store).__name__}): expected a nantrap.CheckpointStore")
        self._guard = guard
        self.store = store
        self._every = every
        self._due = every
        self._tried: set[str] = set()
        self._older_than: int | None = None
        self._recovering = 1.0

    # ---- saving

    @property
    def parts(self) -> dict[str, Any]:
        """What has a state, by the name of its section."""
        guard = self._guard
        ema = guard._ema
        if ema is not None and not (hasattr(ema, "state_dict") and hasattr(ema, "load_state_dict")):
            ema = guard._ema_modules[0] if guard._ema_modules else None  # a plain function has nothing to save
        return {
            "model": guard.model,
            "optimizer": guard.optimizer,
            "scheduler": guard.scheduler,
            "scaler": guard._scaling.scaler,
            "ema": ema,
        }

    def save(
        self, path: PathLike | None, *, data_position: Any, extras: Mapping[str, Any] | None, pin: bool
    ) -> Path | None:
        """Write everything to `path`, or into the store. With several ranks the first one writes."""
        from nantrap.checkpoints.store.parts import capture
        from nantrap.checkpoints.store.storefile import save_alone

        guard = self._guard
        if path is None and self.store is None:
            raise UsageError("guard.save() without a path needs a store: Guard(store=nantrap.CheckpointStore(folder))")
        if guard._agreement.rank:
            return None
        step = guard._step
        state: dict[str, Any] = {"step": step, **capture(self.parts, rng=True)}
        state |= {"data_position": data_position, "extras": dict(extras or {})}
        state["guard"] = {"factor": guard._anchors.factor}
        allow = self._deliberate()
        if path is not None:
            return save_alone(path, state, step=step, allow=allow)
        assert self.store is not None
        return self.store.save_state(state, step=step, pin=pin, allow=allow)

    def after_step(self, outcome: Outcome) -> None:
        """A step has ended: the rate's way back up, and a checkpoint when one is due."""
        if not outcome.applied:
            return
        self._recover()
        guard = self._guard
        if self.store is None or not self._every or guard._step < self._due:
            return
        self._due = self._next_due()
        try:
            self.save(None, data_position=None, extras=None, pin=False)
            self._older_than = None
        except (NantrapError, OSError) as error:
            self._warn(f"step {outcome.step:,}: {error}. Training goes on")

    def resumed(self) -> None:
        """The run goes on at another step: the next save is due from there."""
        self._due = self._next_due()
        self._older_than = None
        self._recovering = self._guard._anchors.factor

    def _next_due(self) -> int:
        step = self._guard._step
        return step - step % self._every + self._every if self._every else 0

    def close(self) -> None:
        """Wait for what is still being written; what went wrong with it is a warning, since others must close too."""
        if self.store is not None:
            try:
                self.store.wait()
            except (NantrapError, OSError) as error:
                self._warn(str(error))

    def _deliberate(self) -> list[str]:
        """Buffers that were non-finite from the start, in the model and in its average."""
        names = self._guard._buffers.exempt_names()
        return [pattern for name in names for pattern in (f"model.{name}", f"ema.{name}", f"ema.*.{name}")]

    def _recover(self) -> None:
        """`lr_recover_steps`: the rates climb back by the same factor in each applied step."""
        guard = self._guard
        steps, factor = guard.policy.lr_recover_steps, guard._anchors.factor
        if steps and factor < 1.0:
            target = min(1.0, factor * self._recovering ** (-1.0 / steps))
            self.set_factor(1.0 if target > 1.0 - 1e-9 else target, since=factor)

    # ---- going back

    def set_factor(self, factor: float, *, since: float) -> None:
        """Put `factor` in force, in a state whose rates carry the factor `since`."""
        scale_rates(self._guard.optimizer, self._guard.scheduler, factor / since)
        self._guard._anchors.factor = factor

    def lowered(self, factor: float) -> None:
        """A rollback lowered the rates to `factor`: from here they climb."""
        self._recovering = factor

    def candidates(self) -> list[SavedCheckpoint]:
        """The checkpoints that can still be gone back to, the newest first: older than what was tried before."""
        if self.store is None:
            return []
        self.close()
        try:
            saved = self.store.checkpoints()
        except (NantrapError, OSError) as error:
            self._warn(str(error))
            return []
        bound = self._guard._step + 1 if self._older_than is None else self._older_than
        return [s for s in saved if not s.suspect and s.path.name not in self._tried and s.step < bound]

    def tried(self, step: int) -> None:
        """A state of this step was gone back to: next time only older ones are taken."""
        self._older_than = step

    def restore(self) -> tuple[LoadedCheckpoint, float] | None:
        """Load the newest checkpoint that is whole on every rank, and the factor its rates carry; `None` if none is."""
        guard = self._guard
        before = guard._anchors.capture(guard._step)
        for name in self._agreed([saved.path.name for saved in self.candidates()]):
            self._tried.add(name)
            assert self.store is not None
            loaded, reason = None, ""
            try:
                own = guard._agreement.rank == 0 and guard.policy.rollback_rng == "restore"
                loaded = self.store.load(self.store.folder / name, **self.parts, rng=own, fallback=False)
            except (NantrapError, OSError) as error:
                reason = str(error)
            if loaded is not None and not guard._agreement.decide(origin=False).bad:
                return loaded, float(loaded.state.get("guard", {}).get("factor", 1.0))
            if loaded is None:
                guard._agreement.decide(origin=True)
                self._warn(f"{name} could not be gone back to: {reason}")
            guard._anchors.restore(before)
        return None

    def farewell(self) -> str:
        """For the end of a run that was stopped: where to begin again."""
        if self.store is None:
            return ""
        untried = self.candidates()
        good = untried[0] if untried else self.store.last_good()
        if good is None:
            return f"no checkpoint was saved in {self.store.folder}"
        note = ", from which the run diverged again" if good.path.name in self._tried else ""
        return f"last good checkpoint: {good.path} (step {good.step:,}){note}"

    def _agreed(self, names: list[str]) -> list[str]:
        """The list of the first rank, for all."""
        agreement = self._guard._agreement
        if agreement.world_size == 1:
            return names
        box: list[Any] = [names]
        dist.broadcast_object_list(box, src=0, device=agreement._device)
        return cast("list[str]", box[0])

    def _warn(self, text: str) -> None:
        warnings.warn(f"nantrap: {text}", RuntimeWarning, stacklevel=4)


class Keeping:
    """The guard's methods that have to do with checkpoints."""

    _keeper: Keeper
    _step: int
    optimizer: Optimizer
    scheduler: Any

    def save(
        self,
        path: PathLike | None = None,
        *,
        data_position: Any = None,
        extras: Mapping[str, Any] | None = None,
        pin: bool = False,
    ) -> Path | None:
        """Save model, optimizer, scheduler, scaler, averages, random streams and step: only if finite, in one go.

        Args:
            path: a file (safetensors, whatever its name; an older one is replaced), or `None` for the guard's store.
            data_position: anything plain that says where the data are.
            extras: more to keep, by name.
            pin: in the store: never remove this one.

        Returns:
            Where it is; `None` on all ranks but the first, which do not write.

        Raises:
            NonFiniteError: something is not finite; nothing is written.
        """
        return self._keeper.save(path, data_position=data_position, extras=extras, pin=pin)

    def load(
        self, resume: str | int | os.PathLike[str] = "last_good", *, rng: bool = True, strict: bool = True
    ) -> LoadedCheckpoint:
        """Load everything that `save` saved and go on at its step; see `CheckpointStore.load`.

        Args:
            resume: `"last_good"`, `"latest"`, a step, or the path of a file.
            rng: put the random streams back.
            strict: the keys of the model must fit exactly.
        """
        keeper = self._keeper
        guard = keeper._guard
        if keeper.store is not None:
            loaded = keeper.store.load(resume, **keeper.parts, rng=rng, strict=strict)
        elif isinstance(resume, int) or resume in ("last_good", "latest"):
            raise UsageError(f"guard.load({resume!r}) needs a store: Guard(store=nantrap.CheckpointStore(folder))")
        else:
            from nantrap.checkpoints.store.storefile import load_alone

            state = load_alone(resume, keeper.parts, rng=rng, strict=strict)
            position, extras = state.get("data_position"), state.get("extras") or {}
            loaded = checkpoints.LoadedCheckpoint(Path(resume), int(state["step"]), position, extras, state)
        guard._anchors.forget_after(-1)
        guard._anchors.factor = float(loaded.state.get("guard", {}).get("factor", 1.0))
        guard._buffers.adopt()
        guard._step = loaded.step
        keeper.resumed()
        return loaded

    def check_resume(
        self,
        *,
        lr: float | Iterable[float] | None = None,
        expected_keys: Iterable[str] | None = None,
        step: int | None = None,
        take: str = "restored",
    ) -> list[ResumeFinding]:
        """After states were loaded: is the rate the configured one, is anything missing, does it fit together?

        Args:
            lr: the configured rate, at its peak: what the optimizer is made with, or the `max_lr` of a one-cycle
                schedule; one number, or one for each parameter group.
            expected_keys: the keys of the model's state that was loaded; a state dict will do.
            step: the step at which the run goes on.
            take: `"configured"` puts the configured rate in force, at the schedule's present place.
        """
        guard = self._keeper._guard
        return checkpoints.check_resume(
            model=guard._members.root,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            scaler=guard._scaling.scaler,
            lr=lr,
            expected_keys=expected_keys,
            step=step if step is not None else guard._step or None,
            take=take,
            lowered_by=guard._anchors.factor,
        )
