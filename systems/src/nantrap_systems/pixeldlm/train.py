"""Train it: `python -m nantrap_systems.pixeldlm.train --steps 100`.

Parts       what the repaired system is made of, and a fault replaces
build       from settings to a run, with `make_optimizer`
SYSTEM      what `nantrap demo` shows
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nantrap.errors import UsageError
from nantrap.ops import AdaLNZero, MaskedAttention, masked_mse
from nantrap_systems.pixeldlm.data import Batch, Texts, frequencies
from nantrap_systems.pixeldlm.faults import FAULTS
from nantrap_systems.pixeldlm.loss import Reduce, denoising_loss, evaluate
from nantrap_systems.pixeldlm.model import PixelDLM, any_pixel
from nantrap_systems.pixeldlm.settings import Settings, TrainingSettings
from nantrap_systems.precision import precision, precision_in_words
from nantrap_systems.script import main
from nantrap_systems.system import Run, System
from nantrap_systems.updates import standard_update


@dataclass(frozen=True, slots=True)
class Parts:
    """What the repaired system is made of. A fault replaces some of them by name."""

    attention: Callable[..., nn.Module] = MaskedAttention
    adaln: Callable[..., nn.Module] = AdaLNZero
    counts: Callable[[Tensor], Tensor] = any_pixel
    reduce: Reduce = masked_mse
    prepare: Callable[[Batch], Batch] = lambda batch: batch
    update: Callable[[Run], bool] = standard_update
    begin_epoch: Callable[[Run], None] | None = None


def make_optimizer(model: nn.Module, training: TrainingSettings) -> torch.optim.Optimizer:
    """AdamW, or SGD with momentum."""
    rate, decay = training.learning_rate, training.weight_decay
    if training.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
    if training.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=decay)
    raise UsageError(f"training.optimizer is {training.optimizer!r}: choose adamw or sgd")


def build(settings: Settings, parts: Mapping[str, Any], seed: int) -> Run:
    """A run: the model, its optimizer and schedule, its batches and its loss."""
    chosen, training = Parts(**parts), settings.training
    torch.manual_seed(seed)
    texts = Texts(settings.data, slots=settings.model.condition_slots)
    model = PixelDLM(
        settings.model,
        image_size=settings.data.image_size,
        alpha=settings.diffusion.alpha,
        frequencies=frequencies(texts.training) if settings.model.known_frequencies else None,
        attention=chosen.attention,
        adaln=chosen.adaln,
        counts=chosen.counts,
    )
    optimizer = make_optimizer(model, training)
    warmup = max(training.warmup_steps, 1)
    dtype = precision(training.mixed_precision)
    micro = training.gradient_accumulation_steps

    def window(step: int) -> tuple[Batch, ...]:
        numbers = range(step * micro, (step + 1) * micro)
        return tuple(chosen.prepare(texts.batch(n, size=training.batch_size, seed=seed)) for n in numbers)

    def loss(batch: Batch) -> Tensor:
        found = denoising_loss(model, batch, diffusion=settings.diffusion, dtype=dtype, reduce=chosen.reduce)
        return training.loss_weight * found

    return Run(
        model=model,
        optimizer=optimizer,
        loss=loss,
        window=window,
        evaluate=partial(evaluate, model, texts.held_out, diffusion=settings.diffusion, dtype=dtype),
        update=chosen.update,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup)),
        scaler=torch.amp.GradScaler("cpu") if dtype is torch.float16 and training.loss_scaling else None,
        max_grad_norm=training.max_grad_norm,
        begin_epoch=chosen.begin_epoch,
        epoch_steps=settings.length.epoch,
        facts=(precision_in_words(dtype),),
    )


SYSTEM = System(
    name="pixeldlm",
    title="token ids as pixels, and a diffusion transformer that predicts the clean image",
    quality="token recovery",
    settings=Settings,
    config=Path(__file__).with_name("config.yaml"),
    build=build,
    faults=FAULTS,
    lr_setting="training.learning_rate",
    length_setting="training.num_train_steps",
)

if __name__ == "__main__":
    raise SystemExit(main(SYSTEM))
