"""One callback guards a Lightning Trainer. A row of the dataset holds a NaN, and its steps are skipped.

Run it: python examples/lightning_trainer.py   (needs nantrap[lightning])
"""

from __future__ import annotations

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import nantrap.lightning


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, target = batch
        loss: Tensor = nn.functional.mse_loss(self.net(inputs), target)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


torch.manual_seed(0)
inputs = torch.randn(64, 4)
target = inputs.sum(dim=1, keepdim=True)
inputs[21, 2] = float("nan")  # an empty cell of the table

model = Regression()
guard = nantrap.lightning.Guard()
trainer = lightning.Trainer(
    max_epochs=2,
    callbacks=[guard],  # the one line
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, DataLoader(TensorDataset(inputs, target), batch_size=8))

summary = guard.summary
print(f"applied {summary.applied} of {summary.steps} steps")
print(f"the model is finite: {all(bool(value.isfinite().all()) for value in model.state_dict().values())}")
