"""Train it: `python -m nantrap_systems.restran_mhc.train --steps 100`.

Settings    the config file
Parts       what the repaired system is made of, and a fault replaces
build       from settings to a run, with `make_model`
SYSTEM      what `nantrap demo` shows
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import nantrap
from nantrap.errors import UsageError
from nantrap.ops import RMSNorm, Sinkhorn, ctc_loss
from nantrap_systems.precision import precision
from nantrap_systems.restran_mhc.data import Batch, Plates
from nantrap_systems.restran_mhc.faults import FAULTS
from nantrap_systems.restran_mhc.loss import Ctc, evaluate, plate_loss
from nantrap_systems.restran_mhc.mhc import HyperConnection, Residual, mix
from nantrap_systems.restran_mhc.model import Contrast, PlateReader, branch
from nantrap_systems.restran_mhc.resume import Load, Save, go_on, load_last_good, save_finite
from nantrap_systems.script import main
from nantrap_systems.settings import Alias
from nantrap_systems.system import Flag, Run, System, standard_update

WATCH = dict.fromkeys(("*.alpha_pre", "*.alpha_post", "*.alpha_res"), nantrap.Limit(min=-1.0, max=1.0))
"""The α begin at 0.01; one beyond ±1 makes the matrices of a hyper-connection saturate."""


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
    warmup: float = 0.1
    mixed_precision: str = "no"
    loss_scaling: bool = True
    loss_scale: float = 65536.0
    earlier_steps: int = 0
    earlier_rate: float = 1e-2
    earlier_accident: bool = False

    def __post_init__(self) -> None:
        if self.model_type not in ("restran_mhc", "restran"):
            raise UsageError(f"model_type is {self.model_type!r}: choose restran_mhc or restran")
        if self.mhc_n < 1:
            raise UsageError(f"mhc_n is {self.mhc_n}: at least 1 stream")
        if self.frame_stride not in (4, 8):
            raise UsageError(f"frame_stride is {self.frame_stride}: choose 4 or 8")
        if self.width % self.frame_stride:
            raise UsageError(f"width {self.width} is not a multiple of frame_stride {self.frame_stride}")


@dataclass(frozen=True, slots=True)
class Parts:
    """What the repaired system is made of. A fault replaces some of them by name."""

    contrast: Callable[[], nn.Module] = Contrast
    connection: Callable[..., nn.Module] = HyperConnection
    norm: Callable[[int], nn.Module] = RMSNorm
    sinkhorn: Callable[[], nn.Module] = Sinkhorn
    mixing: Callable[[Tensor, Tensor], Tensor] = mix
    sublayer: Callable[[int], nn.Module] = branch
    ctc: Ctc = ctc_loss
    update: Callable[[Run], bool] = standard_update
    begin_epoch: Callable[[Run], None] | None = None
    save: Save = save_finite
    load: Load = load_last_good


def make_model(settings: Settings, parts: Parts) -> PlateReader:
    """The model of some settings and parts."""
    return PlateReader(
        channels=settings.channels,
        n=settings.mhc_n,
        depth=settings.mhc_blocks,
        heads=settings.num_heads,
        frame_stride=settings.frame_stride,
        width=settings.width,
        contrast=parts.contrast,
        connection=partial(
            parts.connection if settings.model_type == "restran_mhc" else Residual,
            collapse=settings.mhc_collapse,
            alpha=settings.mhc_alpha,
            alpha_res=settings.mhc_alpha_res,
            norm=parts.norm,
            sinkhorn=parts.sinkhorn,
            mixing=parts.mixing,
        ),
        sublayer=parts.sublayer,
    )


def alphas(model: nn.Module) -> dict[str, float]:
    """Every α by name."""
    return {name: float(value.detach()) for name, value in model.named_parameters() if "alpha_" in name}


def describe_alphas(model: nn.Module) -> str:
    """The largest of each kind of α; a warning above 1."""
    found = alphas(model)
    if not found:
        return "no alphas"
    kinds = {
        kind: max((value for name, value in found.items() if name.endswith(kind)), key=abs)
        for kind in ("alpha_pre", "alpha_post", "alpha_res")
    }
    text = ", ".join(f"{kind} {value:.3f}" for kind, value in kinds.items())
    return text + (" (warning: above 1)" if max(map(abs, kinds.values())) > 1 else "")


def build(settings: Settings, parts: Mapping[str, Any], seed: int) -> Run:
    """A run: the model, its optimizer and schedule, its batches and its loss; gone on with if there is an earlier."""
    chosen = Parts(**parts)
    torch.manual_seed(seed)
    plates = Plates(
        height=settings.height,
        width=settings.width,
        frames=settings.num_frames,
        level=settings.augmentation,
        missing=settings.missing_frames,
        black=settings.black_frames,
        oversample=settings.oversample_rare,
    )
    model = make_model(settings, chosen)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    dtype = precision(settings.mixed_precision, setting="mixed_precision")
    scaled = dtype is torch.float16 and settings.loss_scaling

    def window(step: int) -> tuple[Batch, ...]:
        return (plates.batch(step, size=settings.batch_size, seed=seed),)

    run = Run(
        model=model,
        optimizer=optimizer,
        loss=lambda batch: plate_loss(model, batch, dtype=dtype, ctc=chosen.ctc),
        window=window,
        evaluate=lambda: evaluate(model, plates.held_out, dtype=dtype),
        update=chosen.update,
        scheduler=torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            settings.learning_rate,
            total_steps=settings.epochs * settings.steps_per_epoch,
            pct_start=settings.warmup,
        ),
        scaler=torch.amp.GradScaler("cpu", init_scale=settings.loss_scale) if scaled else None,
        watch=WATCH,
        watched=partial(alphas, model),
        describe=partial(describe_alphas, model),
        max_grad_norm=settings.grad_clip,
        begin_epoch=chosen.begin_epoch,
        epoch_steps=settings.steps_per_epoch,
    )
    if settings.earlier_steps:
        before = replace(settings, learning_rate=settings.earlier_rate, earlier_steps=0)
        run.notes = tuple(
            go_on(
                run,
                build(before, parts, seed + 1),
                steps=settings.earlier_steps,
                accident=settings.earlier_accident,
                rate=settings.learning_rate,
                save=chosen.save,
                load=chosen.load,
            )
        )
    return run


SYSTEM = System(
    name="restran_mhc",
    title="licence plates from three frames, hyper-connections on a manifold, and CTC",
    quality="character accuracy",
    settings=Settings,
    config=Path(__file__).with_name("config.py"),
    build=build,
    faults=FAULTS,
    lr_setting="learning_rate",
    flags=(
        Flag("--model", "model_type", "restran_mhc, or restran without hyper-connections"),
        Flag("--mhc-n", "mhc_n", "how many streams"),
    ),
)

if __name__ == "__main__":
    raise SystemExit(main(SYSTEM))
