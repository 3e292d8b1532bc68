"""Save a run and resume it bit for bit: weights, optimizer, schedule, scaler, averages, step and random stream."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from nantrap.errors import UsageError
from nantrap.systems.system import Run


def save(run: Run, path: Path, *, step: int) -> None:
    """Write the state after `step` steps. A crash while writing leaves the file that was there."""
    state: dict[str, Any] = {name: part.state_dict() for name, part in _parts(run).items()}
    state |= {"step": step, "rng": torch.get_rng_state()}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".writing")
    torch.save(state, temporary)
    os.replace(temporary, path)


def resume(run: Run, path: Path) -> int:
    """Load what `save` wrote, and return the number of the next step."""
    try:
        state = torch.load(path, weights_only=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    for name, part in _parts(run).items():
        part.load_state_dict(state[name])
    torch.set_rng_state(state["rng"])
    return int(state["step"])


def _parts(run: Run) -> dict[str, Any]:
    parts = {
        "model": run.model,
        "optimizer": run.optimizer,
        "scheduler": run.scheduler,
        "scaler": run.scaler,
        "ema": run.ema,
    }
    return {name: part for name, part in parts.items() if part is not None}
