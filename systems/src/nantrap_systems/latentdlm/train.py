"""Train it: `python -m nantrap_systems.latentdlm.train --steps 100`.

Parts       what the repaired system is made of, and a fault replaces
build       from settings to a run; in a process group, one of its ranks
SYSTEM      what `nantrap demo` shows
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nantrap.ops import cosine_schedule, signal_and_noise
from nantrap_systems.latentdlm.data import Batch, Texts, frequencies, share_of
from nantrap_systems.latentdlm.faults import FAULTS
from nantrap_systems.latentdlm.loss import (
    LatentLoss,
    Levels,
    Schedule,
    TextLoss,
    Times,
    TrainingLoss,
    evaluate,
    latent_mse,
    masked_cross_entropy,
    random_times,
)
from nantrap_systems.latentdlm.model import JointAttention, LatentDLM, LearnedSchedule
from nantrap_systems.latentdlm.settings import DTYPES, WEIGHTS, Settings
from nantrap_systems.precision import precision_in_words
from nantrap_systems.script import main
from nantrap_systems.system import Run, System, Terms
from nantrap_systems.updates import standard_update


def average_in_backward(model: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
    """Processes average their gradients in the backward pass, so that all see the same ones."""
    return DistributedDataParallel(model)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the repaired system is made of. A fault replaces some of them by name."""

    shares: Callable[[Tensor], Tensor] = frequencies
    prepare: Callable[[Batch, int], Batch] = lambda batch, number: batch
    attention: Callable[..., nn.Module] = JointAttention
    parallel: Callable[[nn.Module, torch.optim.Optimizer], nn.Module] = average_in_backward
    schedule: Schedule = cosine_schedule
    learned_schedule: Callable[[], nn.Module] = LearnedSchedule
    times: Times = random_times
    levels: Levels = signal_and_noise
    text_loss: TextLoss = masked_cross_entropy
    latent_loss: LatentLoss = latent_mse
    finish: Callable[[Mapping[str, Tensor]], Terms] = lambda terms: terms
    update: Callable[[Run], bool] = standard_update


def build(settings: Settings, parts: Mapping[str, Any], seed: int) -> Run:
    """A run: the model, its optimizer and schedule, its batches and its loss. In a process group, the run of a rank."""
    chosen, training = Parts(**parts), settings.training
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if ranks > 1 else 0
    torch.manual_seed(seed)
    texts = Texts(settings.data, shares=chosen.shares)
    inner = LatentDLM(settings.model, settings.data, attention=chosen.attention, schedule=chosen.learned_schedule)
    if training.dtype in WEIGHTS:
        inner = inner.to(WEIGHTS[training.dtype])
    optimizer = torch.optim.AdamW(
        inner.parameters(), lr=settings.optimizer.lr, weight_decay=settings.optimizer.weight_decay
    )
    model = chosen.parallel(inner, optimizer) if ranks > 1 else inner
    if ranks > 1:
        torch.manual_seed(seed + 1000 * rank)  # weights are the same, noise is not
    micro = training.gradient_accumulation_steps
    schedule = inner.schedule if settings.model.learned_schedule else chosen.schedule
    assert callable(schedule)
    dtype = DTYPES[training.dtype]

    def window(step: int) -> tuple[Batch, ...]:
        numbers = range(step * micro, (step + 1) * micro)
        size, mode = training.train_batch_size, training.mode
        batches = (chosen.prepare(texts.batch(n, size=size, seed=seed, mode=mode), n) for n in numbers)
        return tuple(share_of(batch, rank=rank, ranks=ranks) for batch in batches)

    return Run(
        model=model,
        optimizer=optimizer,
        loss=TrainingLoss(
            model,
            settings.loss,
            dtype=dtype,
            schedule=schedule,
            times=chosen.times,
            levels=chosen.levels,
            text_loss=chosen.text_loss,
            latent_loss=chosen.latent_loss,
            finish=chosen.finish,
        ),
        window=window,
        evaluate=partial(
            evaluate,
            inner,
            texts.held_out,
            prediction=settings.loss.latent_prediction,
            dtype=dtype,
            schedule=schedule if settings.model.learned_schedule else cosine_schedule,
        ),
        update=chosen.update,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, training.lr_factor),
        max_grad_norm=settings.optimizer.grad_clip_norm,
        facts=(precision_in_words(dtype, WEIGHTS.get(training.dtype, torch.float32)),),
        process_group=dist.group.WORLD if ranks > 1 and not isinstance(model, DistributedDataParallel) else None,
    )


SYSTEM = System(
    name="latentdlm",
    title="masked text diffusion and latent diffusion in one transformer over both",
    quality="bytes guessed",
    settings=Settings,
    config=Path(__file__).with_name("config.yaml"),
    build=build,
    faults=FAULTS,
    lr_setting="optimizer.lr",
    length_setting="training.num_train_steps",
)

if __name__ == "__main__":
    raise SystemExit(main(SYSTEM))
