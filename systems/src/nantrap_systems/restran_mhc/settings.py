"""The settings of restran_mhc: what `config.py` says, by the same names in small letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from nantrap.errors import UsageError
from nantrap_systems.settings import Alias, Length

_LEVELS = {"none": 0, "light": 0, "medium": 1, "full": 2, "strong": 2}


def augmentation_level(value: Any) -> int:
    """The number of a level: 0, 1, 2, or light, medium, full."""
    return _LEVELS[str(value)] if str(value) in _LEVELS else int(value)


@dataclass(frozen=True, slots=True)
class Settings:
    """The config file, a Python file of constants. `use_cudnn_benchmark` is only kept: there is no GPU here."""

    ALIASES: ClassVar[Mapping[str, Alias]] = {
        "augmentation_level": Alias("augmentation", augmentation_level),
        "oversample_rare_chars": Alias("oversample_rare", lambda value: 0.5 if str(value).lower() == "true" else 0.0),
        "num_epochs": Alias("epochs"),
    }

    model_type: str = "restran_mhc"
    use_cudnn_benchmark: bool = False
    channels: int = 32
    mhc_n: int = 2
    mhc_blocks: int = 3
    mhc_collapse: bool = False
    mhc_alpha: float = 0.01
    mhc_alpha_res: float = 0.01
    num_heads: int = 4
    frame_stride: int = 4
    num_frames: int = 3
    height: int = 16
    width: int = 72
    augmentation: int = 0
    missing_frames: float = 0.02
    black_frames: float = 0.0
    oversample_rare: float = 0.5
    learning_rate: float = 1e-2
    weight_decay: float = 0.01
    grad_clip: float = 1.0
    batch_size: int = 16
    epochs: int = 30
    steps_per_epoch: int = 10
    total_steps: int = 0
    warmup: float = 0.1
    mixed_precision: str = "no"
    loss_scaling: bool = True
    loss_scale: float = 65536.0
    earlier_steps: int = 0
    earlier_rate: float = 1e-2
    earlier_accident: bool = False

    @property
    def length(self) -> Length:
        """The steps of a run, which the cycle spans, and of an epoch: `total_steps`, or all epochs."""
        return Length(self.total_steps or self.epochs * self.steps_per_epoch, self.steps_per_epoch)

    def __post_init__(self) -> None:
        if self.model_type not in ("restran_mhc", "restran"):
            raise UsageError(f"model_type is {self.model_type!r}: choose restran_mhc or restran")
        if self.mhc_n < 1:
            raise UsageError(f"mhc_n is {self.mhc_n}: at least 1 stream")
        if self.frame_stride not in (4, 8):
            raise UsageError(f"frame_stride is {self.frame_stride}: choose 4 or 8")
        if self.width % self.frame_stride:
            raise UsageError(f"width {self.width} is not a multiple of frame_stride {self.frame_stride}")
