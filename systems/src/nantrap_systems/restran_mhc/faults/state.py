"""Faults around the weights: what a checkpoint brings back, and a scaler that is taken for an alarm."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from nantrap_systems.restran_mhc.faults.caution import CAUTION, HALF
from nantrap_systems.restran_mhc.faults.numbers import skip_bad_norm
from nantrap_systems.system import Fault, Remedy, Run, step_and_clear


def save_always(run: Run, folder: Path, step: int) -> None:
    """`torch.save` after every epoch, over the last one."""
    assert run.scheduler is not None
    state = {
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "scheduler": run.scheduler.state_dict(),
    }
    torch.save(state, folder / "last.pt")


def load_everything(run: Run, folder: Path, rate: float) -> None:
    """Model, optimizer and scheduler, as every tutorial has it."""
    assert run.scheduler is not None
    state = torch.load(folder / "last.pt", weights_only=True)
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.scheduler.load_state_dict(state["scheduler"])


def load_filled(run: Run, folder: Path, rate: float) -> None:
    """A remedy: what is NaN in the weights becomes 0."""
    load_everything(run, folder, rate)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.nan_to_num_(0.0, posinf=0.0, neginf=0.0)


def save_if_parameters_finite(run: Run, folder: Path, step: int) -> None:
    """A remedy: the parameters are checked before they are saved. Buffers are not parameters."""
    if all(parameter.isfinite().all() for parameter in run.model.parameters()):
        save_always(run, folder, step)


def load_schedule(run: Run, folder: Path, rate: float) -> None:
    """A remedy: model and scheduler, but not the optimizer."""
    assert run.scheduler is not None
    state = torch.load(folder / "last.pt", weights_only=True)
    run.model.load_state_dict(state["model"])
    run.scheduler.load_state_dict(state["scheduler"])


def halve_rate_on_overflow(run: Run) -> bool:
    """A norm that is not finite is taken for an instability: the whole cycle is halved."""
    assert run.scaler is not None
    assert run.max_grad_norm is not None
    run.scaler.unscale_(run.optimizer)
    norm = nn.utils.clip_grad_norm_(run.model.parameters(), run.max_grad_norm)
    if not math.isfinite(norm):
        for group in run.optimizer.param_groups:
            for key in ("lr", "max_lr", "initial_lr", "min_lr"):
                group[key] /= 2
    return step_and_clear(run)


POISONED_CHECKPOINT = Fault(
    name="poisoned_checkpoint",
    title="a checkpoint saved after NaN had come in",
    story=(
        "A frame of NaN, one update, and every weight is NaN. The checkpoint is written next, over the last good one. "
        "A restart begins there: every batch is NaN, and the data are searched for the reason."
    ),
    damage="NaN from the first step on, whatever the batch.",
    answer="Names the checkpoint at the first step and stops after six. Its store would not have saved it.",
    parts={"save": save_always, "load": load_everything},
    settings={"earlier_steps": 8, "earlier_accident": True},
    remedies=(
        Remedy(
            name="nan_to_num(weights)",
            story="What is NaN in the loaded weights becomes 0.",
            result="Every weight was NaN, so nothing is left of the model; Adam's moments are NaN and spoil it again.",
            parts={"load": load_filled},
        ),
        Remedy(
            name="check parameters",
            story="No step if the norm is not finite, and parameters are checked before they are saved.",
            result="BatchNorm's running statistics are NaN in the checkpoint: training is fine, evaluation is NaN.",
            parts={"save": save_if_parameters_finite, "update": skip_bad_norm},
        ),
        CAUTION,
    ),
    cause="corrupt_checkpoint",
    notice="*NaN*",
)

STALE_RATE = Fault(
    name="stale_rate",
    title="the optimizer's state restores the old learning rate",
    story=(
        "The learning rate was too high, so the config is changed from 4.92e-2 to 1e-2 and the run continues from "
        "its last checkpoint. OneCycleLR keeps its learning rates in the optimizer's parameter groups, and those are "
        "loaded with the optimizer's state: 4.92 times the configured learning rate is used, and there is no message."
    ),
    damage="Finite; the cycle is 4.92 times as high as configured, and the plates are read worse.",
    answer="`check_resume` reports the learning rate and which state holds it; take='configured' corrects it.",
    parts={"save": save_always, "load": load_everything},
    settings={"earlier_steps": 8, "learning_rate": 1e-2, "earlier_rate": 4.92e-2},
    remedies=(
        Remedy(
            name="scheduler state alone",
            story="Model and scheduler are loaded, the optimizer is not.",
            result="Holds for the learning rate: the groups are those of the config. Adam's moments start at zero.",
            holds=True,
            parts={"load": load_schedule},
        ),
        replace(CAUTION, result="The learning rate stays the old one, whatever the config says."),
    ),
    reported_by="resume check",
    notice="the learning rate is *, the configuration says 0.01: the restored optimizer state overrides it*",
)

SCALER_ALARM = Fault(
    name="scaler_alarm",
    title="the search of a GradScaler for its scale is taken for an instability",
    story=(
        "A GradScaler begins at a high scale and halves it until the gradients fit; the first steps overflow, and it "
        "skips them. A loop that looks at the norm sees Inf, treats it as an instability and halves the learning "
        "rate each time."
    ),
    damage="The learning rate is a fraction of the configured one before the first step; almost nothing is learned.",
    answer="No incident: some overflows in a row are a scaler that searches.",
    parts={"update": halve_rate_on_overflow},
    settings={**HALF, "loss_scale": 2.0**22},
    remedies=(CAUTION,),
    reported_by="guard",
)
