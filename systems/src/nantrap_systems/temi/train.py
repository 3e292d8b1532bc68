"""Train it: `python -m nantrap_systems.temi.train --steps 100`.

Parts       what the repaired system is made of, and a fault replaces
build       from settings to a run
SYSTEM      what `nantrap demo` shows
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from nantrap.ops import beta_pmi
from nantrap_systems.precision import precision, precision_in_words
from nantrap_systems.script import main
from nantrap_systems.system import Flag, Run, System, Terms
from nantrap_systems.temi.data import Batch, Check, Extract, Pairs, check_embeddings, gaussian_embeddings
from nantrap_systems.temi.faults import FAULTS
from nantrap_systems.temi.loss import (
    OverHeads,
    Weigh,
    as_they_are,
    evaluate,
    head_losses,
    mean_of_heads,
    share_of_sure_pairs,
)
from nantrap_systems.temi.model import Head, Pmi, Temi, UnitLength, small_weights
from nantrap_systems.temi.settings import Settings
from nantrap_systems.updates import standard_update


def by_head(losses_H: Tensor) -> dict[str, Tensor]:
    """The terms of the loss by name; their sum is the mean over heads."""
    return {f"head{number}": loss / len(losses_H) for number, loss in enumerate(losses_H)}


def as_it_is(batch: Batch, step: int) -> Batch:
    """The pairs of a step, unchanged."""
    return batch


@dataclass(frozen=True, slots=True)
class Parts:
    """What the repaired system is made of. A fault replaces some of them by name."""

    extract: Extract = gaussian_embeddings
    check: Check = check_embeddings
    prepare: Callable[[Batch, int], Batch] = as_it_is
    unit: Callable[[], nn.Module] = UnitLength
    initialise: Callable[[Head, float], None] = small_weights
    pmi: Pmi = beta_pmi
    pmi_of: Callable[[int], Pmi] | None = None
    weigh: Weigh = share_of_sure_pairs
    over_heads: OverHeads = mean_of_heads
    terms: Callable[[Tensor], Terms] = by_head
    update: Callable[[Run], bool] = standard_update
    begin_epoch: Callable[[Run], None] | None = None


def warmup_and_cosine(step: int, settings: Settings) -> float:
    """The factor of the learning rate: up in a line, then down a cosine to `min_lr`."""
    floor = settings.min_lr / settings.learning_rate
    done = min(max(step - settings.warmup_steps, 0) / max(settings.schedule_steps - settings.warmup_steps, 1), 1.0)
    return min(1.0, (step + 1) / max(settings.warmup_steps, 1)) * (
        floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2
    )


def build(settings: Settings, parts: Mapping[str, Any], seed: int) -> Run:
    """A run: student, teacher, their optimizer and schedule, pairs and loss."""
    chosen = Parts(**parts)
    torch.manual_seed(seed)
    pairs = Pairs(settings, extract=chosen.extract, check=chosen.check)
    model = Temi(settings, pmi=chosen.pmi, pmi_of=chosen.pmi_of, unit=chosen.unit, initialise=chosen.initialise)
    teacher = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(settings.momentum_teacher)).requires_grad_(False)
    optimizer = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
    )
    dtype = precision(settings.mixed_precision, setting="mixed_precision")

    weigh = chosen.weigh if settings.normalise_weights else as_they_are

    def window(step: int) -> tuple[Batch, ...]:
        return (chosen.prepare(pairs.batch(step, size=settings.batch_size, seed=seed), step),)

    def loss(batch: Batch) -> Terms:
        losses = head_losses(model, teacher, batch, dtype=dtype, over_heads=chosen.over_heads, weigh=weigh)
        return chosen.terms(losses)

    return Run(
        model=model,
        optimizer=optimizer,
        loss=loss,
        window=window,
        evaluate=partial(
            evaluate, model, teacher, pairs.held_out, pairs.labels, dtype=dtype, over_heads=chosen.over_heads
        ),
        update=chosen.update,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, partial(warmup_and_cosine, settings=settings)),
        scaler=torch.amp.GradScaler("cpu") if dtype is torch.float16 else None,
        ema=teacher,
        max_grad_norm=settings.clip_grad,
        facts=(precision_in_words(dtype), *pairs.facts),
        begin_epoch=chosen.begin_epoch,
        epoch_steps=settings.length.epoch,
    )


SYSTEM = System(
    name="temi",
    title="multi-head self-distillation that clusters cached embeddings",
    quality="cluster purity",
    settings=Settings,
    config=Path(__file__).with_name("config.py"),
    build=build,
    faults=FAULTS,
    lr_setting="learning_rate",
    length_setting="schedule_steps",
    flags=(
        Flag("--cache-dir", "cache_dir", "where embeddings_train.pt is kept (default: among the temporary files)"),
        Flag("--force-recompute", "force_recompute", "compute the cached embeddings again", switch=True),
    ),
)

if __name__ == "__main__":
    raise SystemExit(main(SYSTEM))
