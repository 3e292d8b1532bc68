"""The faults of radiodiff, each a few lines that take the place of a repaired part, and what was tried against them.

A part is written as one finds it in projects: the same arguments, the same weights, another line in the middle.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from nantrap.errors import MissingExtraError
from nantrap_systems.precision import autocast
from nantrap_systems.radiodiff.data import Batch
from nantrap_systems.radiodiff.loss import Weights, decoupled_terms
from nantrap_systems.radiodiff.model import Latents, RadioDiff
from nantrap_systems.radiodiff.settings import Precision, TrainerSettings
from nantrap_systems.system import Fault, Remedy, lower_rate_and_clip
from nantrap_systems.updates import skip_bad_gradients

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


def floor_as_factor(optimizer: Optimizer, trainer: TrainerSettings) -> LambdaLR:
    """`max((1 - step/total)**0.96, min_lr)` as a factor: the floor is lr · min_lr."""
    return LambdaLR(optimizer, lambda step: max((1 - min(step / trainer.train_num_steps, 1)) ** 0.96, trainer.min_lr))


def around_the_wrapper(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """`model.module.training_step(batch)`: bypasses DistributedDataParallel, whose forward is never called."""
    inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    assert isinstance(inner, RadioDiff)
    return inner.training_step(batch)


# ---- the faults: which parts belong to each, what was tried, and what nantrap must say

_SMALL = {"data.image_size": 32, "data.batch_size": 4}
_HALF = {**_SMALL, "trainer.amp": True}  # half precision is slow on a CPU, so the maps are smaller


caution = partial(lower_rate_and_clip, {"trainer.lr": 5e-4, "trainer.max_grad_norm": 0.1})
CAUTION = caution()
SLOWER = caution(result="Touches nothing of the fault, and learns less.")

LOG_ZERO_TIME = Fault(
    name="log_zero_time",
    title="the time embedding takes the logarithm of a time of 0",
    story=(
        "Times are drawn as whole steps, 0 to 199 of 200, and the embedding takes log(t)/4. One map in 200 gets a time "
        "of exactly 0: log 0 is -Inf, its sine NaN, and through the scale and shift of every block the whole batch is "
        "lost."
    ),
    damage="NaN loss at the first time of 0, NaN weights and BatchNorm statistics from then on.",
    answer="Skips the batch, names the logarithm and its zero, proves it with a safe logarithm.",
    parts={"times": whole_steps, "log_time": plain_log_time},
    remedies=(
        Remedy(
            name="weights at 100",
            story="The loss weights clamped at 100, against exploding weights.",
            result="They lie in [2, 5.44] and [1, 2.72]: nothing changes.",
            parts={"weights": clamped_weights},
        ),
        Remedy(
            name="nan_to_num(pred)",
            story="NaN in the prediction becomes 0.",
            result=(
                "In the backward pass, 0 is multiplied by the NaN inside: NaN weights, under a loss that stays "
                "finite to "
                "the end."
            ),
            parts={"terms": filled_prediction},
        ),
        Remedy(
            name="clamp(pred, 1e6)",
            story="The prediction clamped to ±1e6, called gradient clipping.",
            result="NaN passes a clamp.",
            parts={"terms": clamped_prediction},
        ),
        Remedy(
            name="zero loss",
            story="A batch with a bad loss gets a loss of 0 instead.",
            result="The weights stay finite; BatchNorm has swallowed the NaN, and every evaluation is NaN.",
            parts={"terms": zero_loss},
        ),
        CAUTION,
    ),
    cause="log_of_zero",
    module="unet.time",
    op="aten.log",
)

LOG_PLUS_EPS = Remedy(
    name="log(t + 1e-8)",
    story="An epsilon inside the logarithm.",
    result="Holds in float32: log(1e-8)/4 is -4.6.",
    holds=True,
    parts={"log_time": log_time_plus_eps},
)
"""Not shown, but tested: the one form in which a remedy holds."""

FAULTS = (
    LOG_ZERO_TIME,
    Fault(
        name="amp_without_scaler",
        title="`amp: true` with `fp16: false` is float16 autocast without loss scaling",
        story=(
            '`accelerate config` was set to bf16. The trainer gives its Accelerator `mixed_precision="no"`, since '
            "`fp16` is false, which overrides the file, and switches autocast on without a dtype, which is float16. "
            "Then one batch comes from 16-bit PNGs: 65,535 fits into bfloat16, in float16 it is Inf. There is no "
            "GradScaler, so nothing skips that step."
        ),
        damage="NaN loss at that batch, NaN weights from then on.",
        answer="Skips the step, names the convolution whose input does not fit, proves it in float32.",
        extra="accelerate",
        parts={"precision": precision_of_trainer, "prepare": sixteen_bits},
        settings=_HALF,
        remedies=(
            Remedy(
                name="fp16: true",
                story="The other switch, which adds a GradScaler.",
                result="It skips that step; the BatchNorm behind it keeps the NaN, and every evaluation is NaN.",
                settings={"trainer.fp16": True},
            ),
            CAUTION,
        ),
        cause="fp16_forward_overflow",
    ),
    Fault(
        name="unscaled_attention",
        title="attention without 1/√d in float16",
        story=(
            "Queries and keys have grown until their product passes 65,504, which it does from entries of 64 in 16 "
            "dimensions. Softmax of Inf is NaN. The GradScaler treats every step as an overflow, skips it "
            "and halves its scale."
        ),
        damage="No step is ever taken again; BatchNorm is NaN, the loss scale falls towards 0.",
        answer="Stops after its budget of skips and rollbacks, the product and its magnitude named, proven in float32.",
        parts={"attend": unscaled_attention},
        settings={**_HALF, "trainer.fp16": True, "unet.query_key_gain": 160.0},
        remedies=(
            Remedy(
                name="nan_to_num(scores)",
                story="NaN scores become 0 and Inf ones 65,504 before the softmax.",
                result="Holds: scores that overflowed count alike and send no gradient back; there is no message.",
                holds=True,
                parts={"attend": filled_attention},
            ),
            CAUTION,
        ),
        cause="fp16_forward_overflow",
        module="unet.relations.0.attention",
        op="aten.bmm",
    ),
    Fault(
        name="empty_first_batch",
        title="the scale of the latents is 1/std of a first batch without any spread",
        story=(
            "The scale factor is decided by the first batch, once. Here that batch holds empty maps, whose latents are "
            "0: the std is 0, the scale Inf, and it stays Inf for every batch that follows."
        ),
        damage="NaN from the first step on.",
        answer=(
            "Skips the first step, names the division, and puts the buffer back as it was: so the second batch decides "
            "the scale."
        ),
        parts={
            "model": EmptyMapsAreZero,
            "scale": one_over_any_std,
            "prepare": empty_first_batch,
        },
        remedies=(
            Remedy(
                name="nan_to_num(input)",
                story="NaN in the latents becomes 0, Inf the largest number.",
                result="The first loss is finite, every later one is not: the scale stays Inf.",
                parts={"model": FilledLatents},
            ),
            Remedy(
                name="skip bad steps",
                story="No step if a gradient is not finite.",
                result="Every step is skipped, because the scale stays Inf.",
                parts={"update": skip_bad_gradients},
            ),
            CAUTION,
        ),
        cause="division_by_zero",
        op="aten.reciprocal",
    ),
    Fault(
        name="poisoned_batchnorm",
        title="one NaN batch stays in BatchNorm's running statistics though its step was skipped",
        story=(
            "One condition of one batch has a pixel missing. The loop sees the bad gradient and skips the step. But "
            "the forward pass has moved BatchNorm's running mean, and 0.9 · NaN is NaN."
        ),
        damage="Weights finite, training loss fine, every evaluation NaN from there to the end.",
        answer="Skips the batch, names the tensor and the sample, and puts the running statistics back.",
        parts={"prepare": nan_condition, "update": skip_bad_gradients},
        remedies=(
            Remedy(
                name="zero loss",
                story="A batch with a bad loss gets a loss of 0 instead.",
                result="The statistics were moved before the loss was tested.",
                parts={"terms": zero_loss},
            ),
            CAUTION,
        ),
        cause="bad_input_data",
        module="data",
    ),
    Fault(
        name="nan_pixel",
        title="a map with a NaN pixel",
        story=(
            "A map in 60 has one pixel missing, read as NaN. The encoder's GroupNorm spreads it over the whole map, "
            "and the loss is a mean over the batch."
        ),
        damage="NaN loss at the first such map, NaN weights from then on.",
        answer="Skips the batch, names the tensor and the sample, proves it by leaving the sample out.",
        parts={"prepare": nan_pixel},
        remedies=(
            Remedy(
                name="nan_to_num(loss)",
                story="A loss of NaN becomes 0.",
                result="The loss reads 0.0 and looks perfect; its gradient is NaN, and so are the weights.",
                parts={"terms": filled_loss},
            ),
            Remedy(
                name="nan_to_num(pred)",
                story="NaN in the prediction becomes 0.",
                result="The target is NaN as well.",
                parts={"terms": filled_prediction},
            ),
            Remedy(
                name="nan_to_num(image)",
                story="The missing pixel becomes a middling gain, before the encoder.",
                result="Holds, at the price of a wrong pixel without any message: no gradient passes here.",
                holds=True,
                parts={"prepare": filled_pixel},
            ),
            CAUTION,
        ),
        cause="bad_input_data",
        module="data",
    ),
    Fault(
        name="png_scale",
        title="PNGs that were never divided by 255",
        story=(
            "Every fourth batch comes from a folder whose PNGs are read as 0..255. Everything stays finite: norms take "
            "the scale out again, and a quarter of all steps teach something else."
        ),
        damage="Finite in every step, and worse maps.",
        answer=(
            "Nothing is non-finite, so the guard applies every step. `nantrap data` sees it before training: the "
            "range of these files is not that of the others."
        ),
        parts={"prepare": never_divided},
        remedies=(SLOWER,),
        reported_by="data check",
        code="NT163",
    ),
    Fault(
        name="min_lr_factor",
        title="`min_lr` used as a factor of the learning rate",
        story=(
            "The schedule is max((1 - step/total)^0.96, min_lr), and a LambdaLR multiplies the learning rate by it: "
            "the floor is not 5e-4 but 5e-3 · 5e-4. With a learning rate of 5e-5 and a min_lr of 5e-6 it is 2.5e-10. "
            "Nothing moves there."
        ),
        damage="Finite in every step; the second half of the run is wasted.",
        answer=(
            "There is no incident: a wrong setting is not a fault of a step. `nantrap doctor` sees it in the code "
            "before training."
        ),
        parts={"decay": floor_as_factor},
        settings={"trainer.train_num_steps": 24},
        remedies=(
            Remedy(
                name="min_lr 5e-3",
                story="A floor ten times as high.",
                result="Ten times nothing: 2.5e-5.",
                settings={"trainer.min_lr": 5e-3},
            ),
            SLOWER,
        ),
        reported_by="doctor",
        code="NT808",
    ),
    Fault(
        name="around_ddp",
        title="`model.module.training_step` bypasses DistributedDataParallel",
        story=(
            "The trainer calls a method of the inner module. DistributedDataParallel averages gradients only for what "
            "went through its own forward, so each rank trains its own model, on its half of the data."
        ),
        damage="Finite in every step; the ranks hold different weights, and what is saved saw half of the data.",
        answer="Compares a checksum of the weights between ranks after the first step, and says so.",
        parts={"call": around_the_wrapper},
        settings={**_SMALL, "first_stage.train_num_steps": 60},
        remedies=(SLOWER,),
        cause="rank_divergence",
        processes=2,
    ),
    Fault(
        name="sampler_below_zero",
        title="a sampler with more steps than 1/ε has a negative one",
        story=(
            "The last two steps of the sampler are 1/N - ε and ε. With N = 25 and ε = 0.05 the first of them is "
            "-0.01, and the sampler takes the root of a product with it. The project's ε is 1e-4: there it begins at "
            "10,001 steps."
        ),
        damage="Training is healthy, and every map that is sampled is NaN.",
        answer="No incident: no training step is wrong, and a sampler that calls a part of the model is not watched.",
        parts={"steps": time_steps_below_zero},
        settings={"model.eps": 0.05, "model.sampling_timesteps": 25, "model.evaluate_samples": True},
        remedies=(
            Remedy(
                name="N = 20",
                story="As many steps as 1/ε.",
                result="Holds: the step before the last is 0.",
                holds=True,
                settings={"model.sampling_timesteps": 20},
            ),
            SLOWER,
        ),
    ),
)
