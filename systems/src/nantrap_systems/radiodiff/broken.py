"""The parts as the project had them: the same arguments and the same weights, another line in the middle.

What was tried against them follows each of them. `faults` says which belong together.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from nantrap.errors import MissingExtraError
from nantrap_systems.precision import autocast
from nantrap_systems.radiodiff.data import Batch
from nantrap_systems.radiodiff.loss import Weights, decoupled_terms
from nantrap_systems.radiodiff.mixed import Precision
from nantrap_systems.radiodiff.model import Latents, RadioDiff
from nantrap_systems.system import Run, standard_update

if TYPE_CHECKING:
    from nantrap_systems.radiodiff.train import TrainerSettings

# ---- the time

TIMESTEPS = 200


def whole_steps(count: int, eps: float) -> Tensor:
    """Times as whole steps: 0, 1, ... of 200. One in 200 is 0."""
    return torch.randint(0, TIMESTEPS, (count,)) / TIMESTEPS


def plain_log_time(t_B: Tensor) -> Tensor:
    """log(t)/4, as it is written."""
    return torch.log(t_B) / 4


def log_time_plus_eps(t_B: Tensor) -> Tensor:
    """A remedy: log(t + 1e-8)/4. In float32 it holds."""
    return torch.log(t_B + 1e-8) / 4


def clamped_weights(t_B: Tensor) -> tuple[Tensor, Tensor]:
    """A remedy: the weights clamped at 100. They lie in [2, 5.44] and [1, 2.72]."""
    return (2 * torch.exp(1 - t_B)).clamp(max=100), torch.exp(torch.sqrt(t_B)).clamp(max=100)


def time_steps_below_zero(count: int, eps: float) -> list[float]:
    """A sampler's steps with a last one of 1/count - eps: negative as soon as count > 1/eps."""
    step = 1 / count
    return [step] * (count - 1) + [step - eps, eps]


# ---- the loss


def filled_prediction(
    latents: Latents, drift: Tensor, noise: Tensor, *, vlb_weight: float, weights: Weights
) -> dict[str, Tensor]:
    """A remedy: NaN in the prediction becomes 0."""
    drift, noise = drift.nan_to_num(0.0), noise.nan_to_num(0.0)
    return decoupled_terms(latents, drift, noise, vlb_weight=vlb_weight, weights=weights)


def clamped_prediction(
    latents: Latents, drift: Tensor, noise: Tensor, *, vlb_weight: float, weights: Weights
) -> dict[str, Tensor]:
    """A remedy, called gradient clipping: the prediction clamped to ±1e6. NaN passes a clamp."""
    drift, noise = drift.clamp(-1e6, 1e6), noise.clamp(-1e6, 1e6)
    return decoupled_terms(latents, drift, noise, vlb_weight=vlb_weight, weights=weights)


def filled_loss(
    latents: Latents, drift: Tensor, noise: Tensor, *, vlb_weight: float, weights: Weights
) -> dict[str, Tensor]:
    """A remedy: a loss of NaN becomes 0."""
    terms = decoupled_terms(latents, drift, noise, vlb_weight=vlb_weight, weights=weights)
    return {name: term.nan_to_num(0.0) for name, term in terms.items()}


def zero_loss(
    latents: Latents, drift: Tensor, noise: Tensor, *, vlb_weight: float, weights: Weights
) -> dict[str, Tensor]:
    """A remedy: a bad batch gets a loss of 0 that depends on nothing, so that it has no gradient."""
    terms = decoupled_terms(latents, drift, noise, vlb_weight=vlb_weight, weights=weights)
    if not torch.isfinite(terms["loss_simple"]):
        return {"loss_simple": torch.zeros((), requires_grad=True)}
    return terms


# ---- precision


def precision_of_trainer(trainer: TrainerSettings, accelerate: Path) -> Precision:
    """The trainer's own way: `Accelerator(mixed_precision="fp16" if fp16 else "no")`, then `native_amp = amp`.

    The "no" overrides what the file says, and autocast is switched on without a dtype: on CUDA that is float16. With
    `fp16: true` Accelerate opens the same autocast and has a GradScaler. It refuses that without a GPU, so there is no
    Accelerator in that case.
    """
    if trainer.fp16:
        return Precision(torch.float16, partial(autocast, torch.float16))
    accelerator = launched(accelerate, mixed_precision="no")
    accelerator.native_amp = trainer.amp
    return Precision(torch.get_autocast_dtype("cuda") if trainer.amp else None, partial(as_on_cuda, accelerator))


def launched(accelerate: Path, *, mixed_precision: str | None) -> Any:
    """A real `Accelerator`, as a script has it that was started by `accelerate launch --config_file`.

    The launcher passes what its file says as an environment variable; an argument that is given overrides it.
    """
    try:
        from accelerate import Accelerator
        from accelerate.commands.config.config_args import load_config_from_file
        from accelerate.state import AcceleratorState
    except ImportError:
        raise MissingExtraError("accelerate", extra="accelerate") from None
    name = "ACCELERATE_MIXED_PRECISION"
    before = os.environ.get(name)
    os.environ[name] = str(load_config_from_file(str(accelerate)).mixed_precision)
    AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001 - a singleton without a public way back
    try:
        return Accelerator(mixed_precision=mixed_precision, cpu=True)
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


@contextlib.contextmanager
def as_on_cuda(accelerator: Any) -> Iterator[None]:
    """`accelerator.autocast()`, where autocast without a dtype takes CUDA's: on a CPU it would be bfloat16."""
    before = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", torch.get_autocast_dtype("cuda"))
    try:
        with accelerator.autocast():
            yield
    finally:
        torch.set_autocast_dtype("cpu", before)


def unscaled_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(q·kᵀ)·v: without 1/√d, and in the precision around it."""
    return torch.softmax(query @ key.transpose(-1, -2), dim=-1) @ value


def filled_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A remedy: NaN and Inf scores are replaced before the softmax."""
    return torch.softmax((query @ key.transpose(-1, -2)).nan_to_num(0.0), dim=-1) @ value


# ---- the scale of the latents


class EmptyMapsAreZero(RadioDiff):
    """An empty map is not encoded, to save the time: its latent is 0."""

    @torch.no_grad()
    def encode(self, batch: Batch) -> Tensor:
        latent = self.first_stage.encode(batch.image).sample()
        latent = torch.where((batch.image == -1).all(-1).all(-1)[..., None, None], 0.0, latent)
        if self.scale_factor == 0:
            self.scale_factor.copy_(self.scale(latent))
        return latent * self.scale_factor


class FilledLatents(EmptyMapsAreZero):
    """A remedy: NaN in the latents becomes 0, Inf the largest number there is."""

    def encode(self, batch: Batch) -> Tensor:
        return super().encode(batch).nan_to_num(0.0)


def one_over_any_std(latent: Tensor) -> Tensor:
    """1/std, whatever the std is."""
    return 1.0 / latent.flatten().std()


def empty_first_batch(batch: Batch, step: int) -> Batch:
    """The maps of the first batch are empty: nothing was received anywhere."""
    return batch._replace(image=torch.full_like(batch.image, -1.0)) if step == 0 else batch


# ---- the data

BAD_STEP = 11


def nan_condition(batch: Batch, step: int) -> Batch:
    """One batch of the run has one pixel of one condition missing."""
    if step != BAD_STEP:
        return batch
    condition = batch.condition.clone()
    condition[3 % len(condition), 1, 40 % condition.shape[-2], 7] = math.nan
    return batch._replace(condition=condition)


def nan_pixel(batch: Batch, step: int) -> Batch:
    """A map in 60 has a pixel missing: always the same maps, chosen by the sum of their bytes."""
    image = batch.image.clone()
    sums = (127.5 * (image.double() + 1)).round().long().sum((1, 2, 3))
    image[sums % 60 == 7, 0, 20, 30] = math.nan
    return batch._replace(image=image)


def filled_pixel(batch: Batch, step: int) -> Batch:
    """A remedy: the missing pixel is 0, a middling gain."""
    batch = nan_pixel(batch, step)
    return batch._replace(image=batch.image.nan_to_num(0.0))


def sixteen_bits(batch: Batch, step: int) -> Batch:
    """One batch of the run comes from 16-bit PNGs, and nothing divides: buildings and transmitter are 65,535."""
    return batch._replace(condition=65_535 * batch.condition) if step == BAD_STEP else batch


def never_divided(batch: Batch, step: int) -> Batch:
    """Every fourth batch comes from a folder whose PNGs are read by another library, as 0..255."""
    if step % 4 != 3:
        return batch
    return Batch(2 * (255 * (batch.image + 1) / 2) - 1, 255 * batch.condition)


# ---- the loop


def skip_bad_step(run: Run) -> bool:
    """The project's own guard: no step if a gradient is not finite. What the forward pass wrote stays."""
    gradients = [p.grad for p in run.model.parameters() if p.grad is not None]
    if not all(bool(gradient.isfinite().all()) for gradient in gradients):
        run.optimizer.zero_grad()
        return False
    return standard_update(run)


def floor_as_factor(optimizer: Optimizer, trainer: TrainerSettings) -> LambdaLR:
    """`max((1 - step/total)**0.96, min_lr)` as a factor: the floor is lr · min_lr."""
    return LambdaLR(optimizer, lambda step: max((1 - min(step / trainer.train_num_steps, 1)) ** 0.96, trainer.min_lr))


def around_the_wrapper(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """`model.module.training_step(batch)`: bypasses DistributedDataParallel, whose forward is never called."""
    inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    assert isinstance(inner, RadioDiff)
    return inner.training_step(batch)
