"""Train it: `python -m nantrap_systems.radiodiff.train --steps 100`.

Parts       what the repaired system is made of, and a fault replaces
build       from settings to a run, of one process or of one of several
SYSTEM      what `nantrap demo` shows
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel

from nantrap.ops import decoupled_weights
from nantrap_systems.precision import precision_in_words
from nantrap_systems.radiodiff.autoencoder import first_stage
from nantrap_systems.radiodiff.data import Batch, Maps
from nantrap_systems.radiodiff.faults import FAULTS
from nantrap_systems.radiodiff.loss import Weights, decoupled_terms, evaluate
from nantrap_systems.radiodiff.model import (
    Attend,
    LossTerms,
    RadioDiff,
    UNet,
    attend,
    log_time,
    one_over_std,
    time_steps,
    uniform_times,
)
from nantrap_systems.radiodiff.settings import (
    Precision,
    Settings,
    TrainerSettings,
    mixed_precision_in,
    precision_of_both_files,
)
from nantrap_systems.script import main
from nantrap_systems.system import Flag, Run, System
from nantrap_systems.updates import standard_update


def floored_decay(optimizer: Optimizer, trainer: TrainerSettings) -> LambdaLR:
    """Polynomial decay of the learning rate down to `min_lr`."""
    floor = trainer.min_lr / trainer.lr
    return LambdaLR(optimizer, lambda step: max((1 - min(step / trainer.train_num_steps, 1)) ** 0.96, floor))


def warmed_average(decay: float) -> Callable[[Any, Any, Any], None]:
    """An average whose decay rises to its own: (1 + n) / (10 + n) after n updates, so that a short run has one too."""

    @torch.no_grad()
    def update(averaged: Any, current: Any, count: Any) -> None:
        now = min(decay, (1 + float(count)) / (10 + float(count)))
        for average, value in zip(averaged, current, strict=True):
            average.lerp_(value.to(average.dtype), 1 - now)

    return update


def call_the_wrapper(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The loss through the model as it is wrapped, so that gradients are averaged between ranks."""
    terms: dict[str, Tensor] = model(batch)
    return terms


def as_it_is(batch: Batch, step: int) -> Batch:
    """The batch of a step, unchanged."""
    return batch


@dataclass(frozen=True, slots=True)
class Parts:
    """What the repaired system is made of. A fault replaces some of them by name."""

    attend: Attend = attend
    log_time: Callable[[Tensor], Tensor] = log_time
    times: Callable[[int, float], Tensor] = uniform_times
    scale: Callable[[Tensor], Tensor] = one_over_std
    weights: Weights = decoupled_weights
    terms: Callable[..., dict[str, Tensor]] = decoupled_terms
    model: Callable[..., RadioDiff] = RadioDiff
    prepare: Callable[[Batch, int], Batch] = as_it_is
    precision: Callable[[TrainerSettings, Path], Precision] = precision_of_both_files
    decay: Callable[[Optimizer, TrainerSettings], LambdaLR] = floored_decay
    steps: Callable[[int, float], list[float]] = time_steps
    call: Callable[[nn.Module, Batch], dict[str, Tensor]] = call_the_wrapper
    update: Callable[[Run], bool] = standard_update


def build(settings: Settings, parts: Mapping[str, Any], seed: int) -> Run:
    """A run: the model, its optimizer and schedule, its batches and its loss."""
    chosen, trainer = Parts(**parts), settings.trainer
    trained = first_stage(settings.first_stage, settings.data, seed)
    torch.manual_seed(seed)
    maps = Maps(settings.data)
    terms: LossTerms = partial(chosen.terms, vlb_weight=settings.model.loss_vlb_weight, weights=chosen.weights)
    inner = chosen.model(
        settings.model,
        first_stage=copy.deepcopy(trained),
        unet=UNet(
            settings.unet,
            channels=settings.first_stage.embed_dim,
            size=settings.data.image_size // 4,
            attend=chosen.attend,
            log_time=chosen.log_time,
        ),
        terms=terms,
        times=chosen.times,
        scale=chosen.scale,
    )
    optimizer = torch.optim.AdamW(inner.unet.parameters(), lr=trainer.lr, weight_decay=trainer.weight_decay, fused=True)
    accelerate = Path(settings.accelerate_config or Path(__file__).with_name("accelerate.yaml"))
    asked = chosen.precision(trainer, accelerate)
    together = dist.is_initialized()
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
    model: nn.Module = nn.parallel.DistributedDataParallel(inner) if together else inner
    micro = trainer.gradient_accumulate_every

    def window(step: int) -> tuple[Batch, ...]:
        numbers = range(step * micro, (step + 1) * micro)
        size = settings.data.batch_size
        return tuple(chosen.prepare(maps.batch(n * ranks + rank, size=size, seed=seed), step) for n in numbers)

    def loss(batch: Batch) -> dict[str, Tensor]:
        with asked.context():
            return chosen.call(model, batch)

    judge = partial(evaluate, held_out=maps.held_out, steps=chosen.steps if settings.model.evaluate_samples else None)
    ema = AveragedModel(inner, multi_avg_fn=warmed_average(trainer.ema_decay))
    averaged = ema.module
    assert isinstance(averaged, RadioDiff)
    return Run(
        model=model,
        optimizer=optimizer,
        loss=loss,
        window=window,
        evaluate=partial(judge, inner),
        update=chosen.update,
        scheduler=chosen.decay(optimizer, trainer),
        scaler=torch.amp.GradScaler("cpu") if asked.dtype is torch.float16 and trainer.fp16 else None,
        ema=ema,
        evaluate_ema=partial(judge, averaged),
        max_grad_norm=trainer.max_grad_norm,
        facts=(describe_precision(trainer, accelerate, asked),),
    )


def describe_precision(trainer: TrainerSettings, accelerate: Path, asked: Precision) -> str:
    """What the two files say, and what it comes to."""
    words = f"amp {'on' if trainer.amp else 'off'}, fp16 {'on' if trainer.fp16 else 'off'}"
    result = precision_in_words(asked.dtype).removeprefix("precision: ")
    return f"precision: {words}, {accelerate.name} says {mixed_precision_in(accelerate)}: {result}"


SYSTEM = System(
    name="radiodiff",
    title="radio maps by conditional latent diffusion, decoupled into data and noise",
    quality="cells within 6 dB",
    settings=Settings,
    config=Path(__file__).with_name("config.yaml"),
    build=build,
    faults=FAULTS,
    lr_setting="trainer.lr",
    length_setting="trainer.train_num_steps",
    flags=(Flag("--accelerate-config", "accelerate_config", "the file that `accelerate config` wrote"),),
)

if __name__ == "__main__":
    raise SystemExit(main(SYSTEM))
