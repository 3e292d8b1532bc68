"""A small run with every part a checkpoint can hold, and its whole state by name."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

NAN, INF = float("nan"), float("inf")


class Net(nn.Module):
    """BatchNorm, a causal mask of -inf, a tied weight, and a buffer that is not in the state dict."""

    mask: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.2)
        self.second = nn.Linear(8, 8, bias=False)
        self.third = nn.Linear(8, 8, bias=False)
        self.third.weight = self.second.weight
        self.register_buffer("mask", torch.full((3, 3), -INF).triu(1))
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return self.third(self.second(self.drop(self.norm(self.first(x)))))


@dataclass
class Run:
    model: Net
    optimizer: torch.optim.Optimizer
    scheduler: Any
    scaler: Any
    ema: Any

    @property
    def parts(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self.scaler,
            "ema": self.ema,
        }

    def train(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            x = torch.randn(8, 4) + random.random() + float(np.random.rand())
            loss = (self.model(x) - x.repeat(1, 2)).square().mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.scheduler.step()
            self.ema.update_parameters(self.model)
            losses.append(float(loss.detach()))
        return losses


def make_run(seed: int = 0) -> Run:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Run(
        model,
        optimizer,
        OneCycleLR(optimizer, max_lr=1e-2, total_steps=200),
        torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5),
        AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    )


def damage(path: Path, *, offset: int = -3) -> None:
    """Flip one bit."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(bytes(data))


def files_of(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith("step-")}
