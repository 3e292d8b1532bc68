"""The settings of temi: what `config.py` says, by the same names in small letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from nantrap.errors import UsageError
from nantrap_systems.settings import Alias, Length


@dataclass(frozen=True, slots=True)
class Settings:
    """The config file. `dinov2_model` is only kept: embeddings are made on the spot, whatever would have made them.

    With a `cache_dir` the file there is called `embeddings_train.pt`, as in the project. Without one, every recipe
    has a file of its own among the temporary files of this user.
    """

    ALIASES: ClassVar[Mapping[str, Alias]] = {
        "embedding_dim": Alias("embed_dim"),
        "max_grad_norm": Alias("clip_grad"),
        "use_fp16": Alias("mixed_precision", lambda value: {"true": "fp16", "false": "no"}[str(value).lower()]),
    }

    dinov2_model: str = "dinov2_vitb14"
    cache_dir: str = ""
    force_recompute: bool = False
    num_clusters: int = 20
    embed_dim: int = 64
    samples_per_cluster: int = 100
    spread: float = 0.7
    outliers: int = 4
    knn: int = 25
    l2_norm: bool = False
    num_heads: int = 8
    hidden_dim: int = 128
    bottleneck_dim: int = 64
    norm_bottleneck: bool = True
    init_std: float = 0.02
    norm_last_layer: bool = False
    beta: float = 0.6
    student_temp: float = 0.1
    teacher_temp: float = 0.05
    probs_momentum: float = 0.9
    momentum_teacher: float = 0.98
    normalise_weights: bool = False
    learning_rate: float = 4e-3
    min_lr: float = 1e-6
    weight_decay: float = 1e-4
    warmup_steps: int = 10
    schedule_steps: int = 400
    batch_size: int = 128
    clip_grad: float = 1.0
    mixed_precision: str = "no"
    steps_per_epoch: int = 12

    @property
    def length(self) -> Length:
        """The steps of a run, which the schedule spans, and of an epoch."""
        return Length(self.schedule_steps, self.steps_per_epoch)

    def __post_init__(self) -> None:
        if self.min_lr > self.learning_rate:
            raise UsageError(
                f"min_lr is {self.min_lr:g}, above learning_rate, {self.learning_rate:g}: lower it as well"
            )
