"""The settings of pixeldlm: what `config.yaml` says, by the same names, or the variables of `train_test.sh`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from nantrap.errors import UsageError
from nantrap.ops import cosine_schedule, linear_schedule
from nantrap_systems.settings import Alias, Length


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """`model:` in the config. `pixel_size` is the width of a pixel's features.

    With `known_frequencies` the logits begin at the frequencies of the characters in the texts to train on.
    """

    hidden_size: int = 128
    pixel_size: int = 48
    depth: int = 2
    num_heads: int = 4
    patch_size: int = 4
    condition_slots: int = 2
    known_frequencies: bool = True


LEAST_NOISE = 0.05


@dataclass(frozen=True, slots=True)
class DiffusionSettings:
    """`diffusion:` in the config."""

    noise_schedule: str = "linear"
    num_timesteps: int = 1000
    weighting: str = "noise"
    time_power: float = 2.0

    def __post_init__(self) -> None:
        if self.noise_schedule not in ("linear", "cosine"):
            raise UsageError(f"diffusion.noise_schedule is {self.noise_schedule!r}: choose linear or cosine")
        if self.weighting not in ("noise", "none"):
            raise UsageError(f"diffusion.weighting is {self.weighting!r}: choose noise or none")

    def alpha(self, t: Tensor) -> Tensor:
        """The share of the image at time t in [0, 1]."""
        return linear_schedule(t) if self.noise_schedule == "linear" else cosine_schedule(t)

    def per_noise(self, t_B: Tensor) -> Tensor:
        """What prediction and target are multiplied by before they are compared [B, 1, 1, 1]."""
        if self.weighting == "none":
            return torch.ones(len(t_B), 1, 1, 1)
        return 1 / (1 - self.alpha(t_B)).clamp(min=LEAST_NOISE)[:, None, None, None]


@dataclass(frozen=True, slots=True)
class DataSettings:
    """`data:` in the config."""

    image_size: int = 16
    vocab_size: int = 151_643
    condition_dropout: float = 0.05


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """`training:` in the config. `loss_weight` multiplies the loss; `loss_scaling` is the GradScaler of fp16."""

    optimizer: str = "adamw"
    learning_rate: float = 1e-2  # nantrap: ignore[lr_high]: so small a model learns at it
    weight_decay: float = 0.01
    warmup_steps: int = 10
    batch_size: int = 16
    gradient_accumulation_steps: int = 1
    max_grad_norm: float = 1.0
    loss_weight: float = 1.0
    mixed_precision: str = "no"
    loss_scaling: bool = True
    steps_per_epoch: int = 50
    num_train_steps: int = 100


@dataclass(frozen=True, slots=True)
class Settings:
    """The config file, or the variables of `train_test.sh`."""

    ALIASES: ClassVar[Mapping[str, Alias]] = {
        "lr": Alias("training.learning_rate"),
        "max_grad_norm": Alias("training.max_grad_norm"),
        "batch_size": Alias("training.batch_size"),
        "gradient_accumulation_steps": Alias("training.gradient_accumulation_steps"),
        "noise_schedule": Alias("diffusion.noise_schedule"),
    }

    model: ModelSettings = field(default_factory=ModelSettings)
    diffusion: DiffusionSettings = field(default_factory=DiffusionSettings)
    data: DataSettings = field(default_factory=DataSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)

    @property
    def length(self) -> Length:
        """The steps of a run, and of an epoch. The learning rate is constant after its warm-up."""
        return Length(self.training.num_train_steps, self.training.steps_per_epoch)
