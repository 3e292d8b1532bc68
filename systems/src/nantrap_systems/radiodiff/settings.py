"""The settings of radiodiff: what `config.yaml` says, and how it is read together with `accelerate.yaml`.

`trainer: {amp, fp16}` and the file that `accelerate config` wrote decide the precision together:

Precision                   the dtype of autocast, and autocast itself
precision_of_both_files     what the two files mean together
mixed_precision_in          what the file of `accelerate config` says
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import yaml

from nantrap.errors import FormatError, UsageError
from nantrap_systems.precision import autocast, precision
from nantrap_systems.settings import Length


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """`model:` in the config. With `scale_by_std` the scale is 1/std of the first batch, else `scale_factor`.

    With `evaluate_samples` maps are judged that are sampled from noise, in `sampling_timesteps` steps.
    """

    sampling_timesteps: int = 1
    evaluate_samples: bool = False
    eps: float = 1e-4
    scale_factor: float = 0.3
    scale_by_std: bool = True
    loss_vlb_weight: float = 0.0


@dataclass(frozen=True, slots=True)
class FirstStageSettings:
    """`first_stage:` in the config."""

    embed_dim: int = 3
    ch: int = 16
    kl_weight: float = 1e-6
    lr: float = 4e-3
    train_num_steps: int = 100


@dataclass(frozen=True, slots=True)
class UNetSettings:
    """`unet:` in the config. `query_key_gain` multiplies the first weights of queries and keys."""

    dim: int = 16
    heads: int = 2
    fourier_scale: float = 16.0
    query_key_gain: float = 1.0


@dataclass(frozen=True, slots=True)
class DataSettings:
    """`data:` in the config."""

    image_size: int = 64
    maps: int = 272
    batch_size: int = 8


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """`trainer:` in the config. `amp` is autocast, `fp16` a GradScaler.

    `resume_milestone: 10` continues from the tenth checkpoint in `--run-dir`, as `--resume` with its step does.
    """

    gradient_accumulate_every: int = 1
    lr: float = 5e-3
    min_lr: float = 5e-4
    weight_decay: float = 1e-4
    train_num_steps: int = 120
    max_grad_norm: float = 1.0
    ema_decay: float = 0.999
    amp: bool = False
    fp16: bool = False
    resume_milestone: int = 0

    def __post_init__(self) -> None:
        if self.min_lr > self.lr:
            raise UsageError(f"trainer.min_lr is {self.min_lr:g}, above trainer.lr, {self.lr:g}: lower it as well")
        if self.resume_milestone < 0:
            raise UsageError(f"trainer.resume_milestone is {self.resume_milestone}: 0, or the number of a checkpoint")


@dataclass(frozen=True, slots=True)
class Settings:
    """The config file. `accelerate_config` is the file of `accelerate config`; empty is the one beside this script."""

    accelerate_config: str = ""
    model: ModelSettings = field(default_factory=ModelSettings)
    first_stage: FirstStageSettings = field(default_factory=FirstStageSettings)
    unet: UNetSettings = field(default_factory=UNetSettings)
    data: DataSettings = field(default_factory=DataSettings)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)

    @property
    def length(self) -> Length:
        """The steps of a run; the project counts no epochs."""
        return Length(self.trainer.train_num_steps, milestone=self.trainer.resume_milestone)


class Precision(NamedTuple):
    """The dtype of autocast, `None` for none, and what the forward pass is made in."""

    dtype: torch.dtype | None
    context: Callable[[], AbstractContextManager[object]]


def precision_of_both_files(trainer: TrainerSettings, accelerate: Path) -> Precision:
    """With `amp` the dtype of `accelerate config`, with `fp16` as well float16."""
    dtype = None
    if trainer.amp:
        asked = "fp16" if trainer.fp16 else mixed_precision_in(accelerate)
        dtype = precision(asked, setting=f"{accelerate.name}: mixed_precision")
    return Precision(dtype, partial(autocast, dtype))


def mixed_precision_in(path: Path) -> str:
    """`mixed_precision` of a file that `accelerate config` wrote; its other settings belong to the launcher."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise FormatError(f"{path}: not YAML: {error}") from None
    if not isinstance(content, dict):
        raise FormatError(f"{path}: expected a mapping, got {content!r}")
    found = content.get("mixed_precision", "no")
    return "no" if found is False else str(found)  # YAML reads a bare no as false
