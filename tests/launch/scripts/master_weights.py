"""Master weights that the optimizer owns, a noised batch, and a step that is left out when the norm is not finite."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def noised_loss(model: nn.Module, clean: Tensor) -> Tensor:
    noise = torch.randn_like(clean)
    time = torch.rand(len(clean), 1)
    return ((model((1 - time) * clean + time * noise) - noise) ** 2).mean()


class Trainer:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.master = [nn.Parameter(each.detach().clone()) for each in model.parameters()]
        self.optimizer = torch.optim.AdamW(self.master, lr=1e-3)

    def step(self, images: Tensor) -> None:
        for each in self.model.parameters():
            if each.grad is not None:
                each.grad.zero_()
        self.backward(noised_loss(self.model, images))
        norm = math.sqrt(sum(float(each.grad.norm()) ** 2 for each in self.model.parameters() if each.grad is not None))
        if math.isfinite(norm):
            self.update()

    def backward(self, loss: Any) -> None:
        (loss * 8).backward()

    def update(self) -> None:
        pairs = list(zip(self.model.parameters(), self.master, strict=True))
        for each, master in pairs:
            assert each.grad is not None
            master.grad = each.grad / 8
        self.optimizer.step()
        for each, master in pairs:
            each.detach().copy_(master)


torch.manual_seed(0)
data = torch.randn(96, 6)
data[17, 2] = math.nan
trainer = Trainer(nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 6)))
for (batch,) in DataLoader(TensorDataset(data), batch_size=8):
    trainer.step(batch)
