"""The settings of latentdlm: what `config.yaml` says, by the same names."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from nantrap.errors import UsageError
from nantrap_systems.settings import Length


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """`model:` in the config. With `learned_schedule` the noise of the latent follows a rate that is trained."""

    hidden_size: int = 64
    depth: int = 2
    num_heads: int = 4
    learned_schedule: bool = False


@dataclass(frozen=True, slots=True)
class DataSettings:
    """`data:` in the config."""

    max_length: int = 64
    latent_dim: int = 32
    drop_empty: bool = True


DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16, "pure_bf16": torch.bfloat16}

WEIGHTS = {"pure_bf16": torch.bfloat16}
"""The dtype of the weights themselves, where it is not float32."""


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """`optimizer:` in the config."""

    name: str = "adamw"
    lr: float = 5e-3
    weight_decay: float = 0.01
    grad_clip_norm: float = 0.5

    def __post_init__(self) -> None:
        if self.name != "adamw":
            raise UsageError(f"optimizer.name is {self.name!r}: there is only adamw")


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """`training:` in the config."""

    mode: str = "mixed"
    train_batch_size: int = 8
    gradient_accumulation_steps: int = 2
    warmup_steps: int = 10
    lr_schedule: str = "constant"
    num_train_steps: int = 400
    dtype: str = "fp32"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(f"training.dtype is {self.dtype!r}: choose {', '.join(DTYPES)}")
        if self.lr_schedule not in ("constant", "cosine"):
            raise UsageError(f"training.lr_schedule is {self.lr_schedule!r}: choose constant or cosine")

    def lr_factor(self, step: int) -> float:
        """The factor of the learning rate: up in a line, then constant, or down a cosine to 0."""
        rise = min(1.0, (step + 1) / max(self.warmup_steps, 1))
        if self.lr_schedule == "constant":
            return rise
        done = max(step - self.warmup_steps, 0) / max(self.num_train_steps - self.warmup_steps, 1)
        return rise * (1 + math.cos(math.pi * min(done, 1.0))) / 2


@dataclass(frozen=True, slots=True)
class LossSettings:
    """`loss:` in the config."""

    loss_scale: float = 1.0
    text_loss_weight: float = 1.0
    latent_loss_weight: float = 1.0
    latent_prediction: str = "epsilon"

    def __post_init__(self) -> None:
        if self.latent_prediction not in ("epsilon", "velocity", "sample"):
            raise UsageError(
                f"loss.latent_prediction is {self.latent_prediction!r}: choose epsilon, velocity or sample"
            )


@dataclass(frozen=True, slots=True)
class Settings:
    """The config file."""

    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    loss: LossSettings = field(default_factory=LossSettings)

    @property
    def length(self) -> Length:
        """The steps of a run; the project counts no epochs."""
        return Length(self.training.num_train_steps)
