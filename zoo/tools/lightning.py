"""Lightning's Trainer: plain, with `detect_anomaly`, and with `EarlyStopping(check_finite=True)`."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from zoo.running import Alarm, Run
from zoo.tools.anomaly_mode import anomalies_reported

if TYPE_CHECKING:
    import torch


class Lightning:
    """One epoch over the batches of the program. `EarlyStopping` reads the logged loss when the epoch ends."""

    packages = ("lightning",)
    preload = ("lightning.pytorch", "torch._dynamo")

    def __init__(self, name: str, about: str, *, anomaly: bool = False, early_stopping: bool = False) -> None:
        self.name, self.about = name, about
        self.anomaly, self.early_stopping = anomaly, early_stopping
        self.stops = anomaly or early_stopping
        self.baseline = "lightning_plain"

    def train(self, run: Run) -> None:
        """Fit, and read why the trainer stopped."""
        from lightning.pytorch import Trainer
        from lightning.pytorch.callbacks import EarlyStopping

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        callbacks: list[Any] = [EarlyStopping("loss", check_finite=True)] if self.early_stopping else []
        trainer = Trainer(
            max_epochs=1, accelerator="cpu", devices=1, detect_anomaly=self.anomaly, callbacks=callbacks, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        with anomalies_reported(run, run.path):
            trainer.fit(_module(run), run.batches())
        reasons = [callback.stopping_reason_message or "" for callback in callbacks]
        if any(re.search(r"not finite", reason) for reason in reasons):
            run.alarm(Alarm())


def _module(run: Run) -> Any:
    from lightning.pytorch import LightningModule

    case = run.build()

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = case["model"]

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = run.loss(batch)
            self.log("loss", loss, batch_size=1)
            return loss

        def configure_optimizers(self) -> Any:
            return case["optimizer"]

    return Module()


TOOLS = (
    Lightning("lightning_plain", "Lightning without a check"),
    Lightning("lightning_detect_anomaly", "Lightning, `detect_anomaly`", anomaly=True),
    Lightning("lightning_early_stopping", "Lightning, `EarlyStopping(check_finite)`", early_stopping=True),
)
