"""States of a small training run, as careful people and frameworks save them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def training_state(steps: int = 3) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=100)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(steps):
        scaler.scale(model(torch.randn(5, 8)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "scaler": scaler.state_dict(),
        "ema": {name: value.clone() for name, value in model.state_dict().items()},
        "step": steps,
        "epoch": 1,
    }


def lightning_state() -> dict[str, Any]:
    """A Lightning checkpoint as `ModelCheckpoint` writes it, early stopping at its first epoch included."""
    state = training_state()
    return {
        "epoch": 0,
        "global_step": 3,
        "pytorch-lightning_version": "2.6.6",
        "state_dict": state["model"],
        "loops": {"fit_loop": {"epoch_progress": {"current": {"completed": 1}}}},
        "callbacks": {
            "EarlyStopping{'monitor': 'val'}": {"best_score": torch.tensor(torch.inf), "wait_count": 0},
            "ModelCheckpoint": {"best_model_score": None, "kth_value": torch.tensor(torch.inf)},
        },
        "optimizer_states": [state["optimizer"]],
        "lr_schedulers": [state["scheduler"]],
        "MixedPrecision": state["scaler"],
    }
