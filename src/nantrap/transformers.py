"""transformers: `Trainer(..., callbacks=[nantrap.transformers.Guard()])`.

The callback guards the Trainer's own loop, subclasses with their own `compute_loss` or `training_step` included. A step
that is not finite is skipped, its schedule does not advance, and what `logging_nan_inf_filter` would hide from the log
is reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nantrap.errors import MissingExtraError

try:
    from transformers import TrainerCallback
except ImportError:
    raise MissingExtraError("transformers", extra="transformers") from None

from nantrap.launch.adapting import Adapter

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from nantrap.launch.adapting import Options
    from nantrap.launch.summary import RunSummary


class Guard(TrainerCallback):
    """Guards `trainer.train()`.

    Args:
        options: `policy`, a `nantrap.Policy`; `run_dir`, where the journal and the incidents go; `export`, exporters by
            name; `quiet`, to print nothing.

    Example:
        trainer = transformers.Trainer(..., callbacks=[nantrap.transformers.Guard(run_dir="runs/exp1")])
    """

    def __init__(self, **options: Unpack[Options]) -> None:
        self._adapter = Adapter("transformers", **options)

    @property
    def summary(self) -> RunSummary | None:
        """How the last training went; `None` before its end."""
        return self._adapter.summary

    # ---- the Trainer's hooks

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Attach to the optimizer, which exists by now."""
        self._adapter.begin(alone=True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note where the loop is."""
        self._adapter.set_position(epoch=int(state.epoch or 0))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After a resume the first step has the Trainer's number. The guards of the optimizer exist by now."""
        if state.global_step:
            self._adapter.continue_at(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Log the number of incidents with the loss, in which the Trainer may have replaced NaN."""
        incidents = self._adapter.incidents()
        if logs is not None and incidents:
            logs["nantrap_incidents"] = incidents
            if state.log_history:  # it has a copy of these logs already
                state.log_history[-1]["nantrap_incidents"] = incidents

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Record the evaluation in the journal."""
        self._adapter.log_eval(metrics or {})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Detach and print the summary."""
        self._adapter.end()
