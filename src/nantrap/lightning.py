"""Lightning: `Trainer(callbacks=[nantrap.lightning.Guard()])`, and `nantrap.lightning.guard(fabric)`.

The callback guards the trainer's own loop: automatic and manual optimisation, accumulation, mixed precision, clipping,
several optimizers, and every rank that the trainer starts. A step that is not finite is skipped; a metric that is
not finite is not logged, so that EarlyStopping and ModelCheckpoint do not act on it; a checkpoint with non-finite
weights is not written.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

from nantrap.errors import MissingExtraError

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback  # type: ignore[assignment]  # the older name of the same package
    except ImportError:
        raise MissingExtraError("lightning", extra="lightning") from None

from nantrap.launch.adapting import Adapter

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from nantrap.launch.adapting import Options
    from nantrap.launch.summary import RunSummary

FabricLike = TypeVar("FabricLike")


class Guard(Callback):
    """Guards `trainer.fit`.

    Args:
        options: `policy`, a `nantrap.Policy`; `run_dir`, where the journal and the incidents go; `export`, exporters by
            name; `quiet`, to print nothing.

    Example:
        trainer = lightning.Trainer(callbacks=[nantrap.lightning.Guard(run_dir="runs/exp1")])
    """

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__()
        self._adapter = Adapter("lightning", **options)
        self._logged_incidents = 0
        self._dropped_metrics: set[str] = set()
        self._totals = {"steps": 0, "applied": 0, "incidents": 0}

    @property
    def summary(self) -> RunSummary | None:
        """How the last `fit` went; `None` before its end."""
        return self._adapter.summary

    # ---- Lightning's hooks

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Attach before the trainer makes its optimizers."""
        if stage != "fit":
            return
        self._adapter.begin()
        if self._adapter.active:
            self._watch_log(trainer, pl_module)
            self._gate_checkpoints(trainer)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Note where the loop is."""
        self._adapter.set_position(epoch=trainer.current_epoch, batch=batch_idx)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the number of incidents when it grows."""
        incidents = self._adapter.incidents()
        if incidents != self._logged_incidents:
            self._logged_incidents = incidents
            for logger in trainer.loggers:
                logger.log_metrics({"nantrap/incidents": float(incidents)}, step=trainer.global_step)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Buffers that an abandoned batch changed are restored before the evaluation."""
        self._adapter.record_abandoned()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Record the evaluation in the journal."""
        if not trainer.sanity_checking:
            self._adapter.log_eval(trainer.callback_metrics)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The run ends early: print the summary."""
        self._end()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Detach and print the summary."""
        if stage == "fit":
            self._end()

    def state_dict(self) -> dict[str, Any]:
        """The counts so far, for the checkpoint."""
        loops = list(self._adapter.loops())
        return {
            "steps": self._totals["steps"] + sum(loop.tally.attempted for loop in loops),
            "applied": self._totals["applied"] + sum(loop.tally.applied for loop in loops),
            "incidents": self._totals["incidents"] + sum(loop.tally.incidents for loop in loops),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue counting from the checkpoint."""
        self._totals = {name: int(state_dict.get(name, 0)) for name in self._totals}

    # ---- parts

    def _end(self) -> None:
        self._totals = self.state_dict()
        self._adapter.end()

    def _watch_log(self, trainer: Any, pl_module: Any) -> None:
        """A non-finite metric of a training step is left out: it would end the run or choose a checkpoint."""
        original = pl_module.log

        def log(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
            if trainer.training and _is_nonfinite(value):
                if name not in self._dropped_metrics:
                    self._dropped_metrics.add(name)
                    self._adapter.say(f"metric {name!r} is not finite in a training step: it is not logged")
                return
            original(name, value, *args, **kwargs)

        pl_module.log = log
        self._adapter.at_end(lambda: pl_module.__dict__.pop("log", None))

    def _gate_checkpoints(self, trainer: Any) -> None:
        """A checkpoint is written only if what the guard knows is finite."""
        strategy = trainer.strategy
        original = strategy.save_checkpoint

        def save_checkpoint(checkpoint: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
            self._adapter.may_save(str(filepath), lambda: original(checkpoint, filepath, *args, **kwargs))

        strategy.save_checkpoint = save_checkpoint
        self._adapter.at_end(lambda: strategy.__dict__.pop("save_checkpoint", None))


def guard(
    fabric: FabricLike,
    **options: Unpack[Options],
) -> FabricLike:
    """Guard the loop of a Fabric script from here on; the summary comes at the end of the process.

    Args:
        fabric: the `Fabric`, which is returned.
        options: `policy`, a `nantrap.Policy`; `run_dir`, where the journal and the incidents go; `export`, exporters by
            name; `quiet`, to print nothing.

    Example:
        fabric = nantrap.lightning.guard(lightning.Fabric(accelerator="cpu"))
    """
    Adapter("fabric", **options).begin()
    return fabric


def _is_nonfinite(value: Any) -> bool:
    """Whether a logged value is a number that is not finite."""
    try:
        return not math.isfinite(float(value.detach() if hasattr(value, "detach") else value))
    except (TypeError, ValueError, RuntimeError):
        return False  # a metric object, or several numbers: left to Lightning
