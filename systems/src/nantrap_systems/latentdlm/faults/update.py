"""Faults of the loop: what is tested before a step, and what is thrown away with it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nantrap_systems.latentdlm.data import Batch
from nantrap_systems.latentdlm.faults.caution import caution
from nantrap_systems.latentdlm.loss import random_times
from nantrap_systems.latentdlm.model import LearnedSchedule
from nantrap_systems.system import Fault, Remedy, Run, standard_update, step_and_clear

STATIC_SCALE = 2.0**26
ALMOST_ZERO = 1e-4


def isnan_of_the_norm(run: Run) -> bool:
    """Clip; if the norm is NaN, set every gradient to 0; still make the step. Inf is not NaN."""
    assert run.max_grad_norm is not None
    norm = nn.utils.clip_grad_norm_(run.model.parameters(), run.max_grad_norm)
    if torch.isnan(norm):
        for parameter in run.model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
    return step_and_clear(run)


def isfinite_of_the_norm(run: Run) -> bool:
    """The remedy that holds: the step is left out unless the norm is finite."""
    assert run.max_grad_norm is not None
    norm = nn.utils.clip_grad_norm_(run.model.parameters(), run.max_grad_norm)
    if not torch.isfinite(norm):
        run.optimizer.zero_grad()
        return False
    return step_and_clear(run)


class CoarseSchedule(LearnedSchedule):
    """ᾱ = exp(-rate·t) in bfloat16: it is exactly 1 for rate·t below 0.002."""

    def forward(self, t: Tensor) -> Tensor:
        return torch.exp(-self.rate.bfloat16() * t.bfloat16())


def roots(alpha_bar: Tensor) -> tuple[Tensor, Tensor]:
    """√ᾱ and √(1-ᾱ), as they are written."""
    return alpha_bar.sqrt(), (1 - alpha_bar).sqrt()


def now_and_then_almost_zero(batch: Batch) -> tuple[Tensor, Tensor]:
    """Times of which one in a few hundred is almost 0: always for the same texts, chosen by the sum of their bytes."""
    text_t, latent_t = random_times(batch)
    rare = batch.tokens.sum(-1) % 331 == 7
    return text_t, torch.where(rare & (rare.cumsum(0) == 1), ALMOST_ZERO, latent_t)


def static_scale(terms: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """A fixed loss scale for float16; clipping brings the gradients back, so nothing divides by it."""
    return {name: STATIC_SCALE * term for name, term in terms.items()}


def skip_if_nan(terms: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """A remedy: a loss that is NaN counts as 0. It is finite on the fatal step."""
    return {name: torch.where(term.isnan(), 0.0, term) for name, term in terms.items()}


def shares_of_nothing(counts_NV: Tensor) -> Tensor:
    """n / Σ n: a text without bytes is 0/0."""
    return counts_NV / counts_NV.sum(-1, keepdim=True)


def sum_plus_eps(logits_BLV: Tensor, tokens_BL: Tensor, masked_BL: Tensor) -> Tensor:
    """A remedy: Σ m·CE / (max(Σ m, 1) + 1e-8)."""
    every = F.cross_entropy(logits_BLV.flatten(0, 1), tokens_BL.flatten(), reduction="none")
    return (every * masked_BL.flatten()).sum() / (masked_BL.sum().clamp(min=1) + 1e-8)


def clamped(terms: Mapping[str, Tensor]) -> Tensor:
    """A remedy: the loss is clamped to 100. NaN passes, and above 100 the gradient is 0."""
    return torch.stack([*terms.values()]).sum().clamp(max=100.0)


def skip_window(run: Run) -> bool:
    """If any gradient is bad, clear them and leave the step out, with all its micro-batches."""
    gradients = [parameter.grad for parameter in run.model.parameters() if parameter.grad is not None]
    if not all(bool(gradient.isfinite().all()) for gradient in gradients):
        run.optimizer.zero_grad()
        return False
    return standard_update(run)


def missing_latents(batch: Batch) -> Batch:
    """The latent of one text in 40 was never computed, and its place in the cache is NaN."""
    missing = batch.tokens.sum(-1) % 40 == 7
    return batch._replace(latent=batch.latent.masked_fill(missing[:, None], math.nan))


ISNAN_ONLY = Fault(
    name="isnan_only",
    title="the loop asks whether the norm is NaN, and an Inf gradient passes",
    story=(
        "In bf16, with a loss scale of 1.0, the noise of the latent follows exp(-rate·t), with a trained rate. At a "
        "time close to 0 it is exactly 1 in bfloat16, so the noise is √(1 - 1) = 0 and the slope of the root is "
        "infinite: the gradient of one weight, the noise rate, is Inf, though the loss and every other gradient are "
        "finite. "
        "The norm is Inf, `isnan(norm)` is False, and clipping by 0.5/Inf = 0 makes Inf · 0 = NaN of it. From then on "
        "the loss is NaN, the norm is NaN, and every step is zeroed and taken: the project paid for 98,000 of them."
    ),
    damage="One NaN weight after a step with a finite loss, NaN losses to the end; every step counts as taken.",
    answer="Drops the one micro-batch, names the root and its line, proves it with a slope that is bounded at 0.",
    parts={
        "update": isnan_of_the_norm,
        "learned_schedule": CoarseSchedule,
        "levels": roots,
        "times": now_and_then_almost_zero,
    },
    settings={
        "training.dtype": "bf16",
        "training.mode": "unconditional",
        "model.learned_schedule": True,
        "model.hidden_size": 32,
        "model.depth": 1,
    },  # half precision is slow on a CPU, so the model is smaller
    remedies=(
        Remedy(
            name="isnan(loss)",
            story="A loss that is NaN counts as 0.",
            result="The loss of the fatal step is finite. One weight is NaN; the latent term reads 0.0 ever after.",
            parts={"finish": skip_if_nan},
        ),
        Remedy(
            name="isfinite(norm)",
            story="Ask for isfinite in the place of isnan, and leave the step out, as the project did in the end.",
            result="Holds. It does not say which gradient, nor why, and the good micro-batch of the step is lost.",
            holds=True,
            parts={"update": isfinite_of_the_norm},
        ),
        caution(),
    ),
    cause="singular_gradient_at_zero",
    module="loss",
)

STATIC_SCALE_FAULT = Fault(
    name="static_scale",
    title="float16 with a fixed loss scale that is too large",
    story=(
        "Under float16 the loss is multiplied by a fixed number, here 2^26, so that small gradients do not vanish; "
        "clipping brings them back, so nothing divides by it. The large ones do not fit: the gradient of the text head "
        "is Inf, though the loss is finite."
    ),
    damage="Inf gradients under a finite loss in the first step, NaN weights from then on.",
    answer="Stops after its budget, names the gradient that overflows, proves it with a loss scale of 1.",
    parts={"finish": static_scale},
    settings={
        "training.dtype": "fp16",
        "model.hidden_size": 32,
        "model.depth": 1,
        "training.train_batch_size": 4,
    },
    remedies=(
        Remedy(
            name="isfinite(norm)",
            story="No step unless the norm is finite.",
            result="Finite, and not one step is ever taken.",
            parts={"update": isfinite_of_the_norm},
        ),
        caution(),
    ),
    cause="loss_scale_misuse",
)

NAN_NORM = Fault(
    name="nan_norm",
    title="one NaN gradient makes the norm NaN, and clipping makes every gradient NaN",
    story=(
        "A text whose length is a multiple of 64 leaves an empty piece behind. Its byte frequencies are 0/0, so "
        "its latent is NaN, and so are the loss and the gradients that lead to it; those of the text head alone are "
        "often good. Clipping multiplies all of them by 0.5/NaN."
    ),
    damage="NaN loss at the first empty text, and every weight NaN after the same step.",
    answer="Drops the micro-batch, names the latent and the sample, proves it by leaving the sample out.",
    parts={"shares": shares_of_nothing},
    settings={"data.drop_empty": False},
    remedies=(
        Remedy(
            name="+ 1e-8",
            story="Add 1e-8 to the number of masked tokens, which is at least 1 already.",
            result="Changes no bit of the loss: 1 + 1e-8 is 1 in float32, and it was not this division.",
            parts={"text_loss": sum_plus_eps},
        ),
        Remedy(
            name="clamp(loss, 100)",
            story="Clamp the loss to 100.",
            result="Passes NaN through: clamp compares, and no comparison with NaN is true.",
            parts={"finish": clamped},
        ),
        Remedy(
            name="zero if isnan(norm)",
            story="If the norm is NaN, set all gradients to 0 and step.",
            result="Finite. But momentum and decay move the weights in a step that learned nothing, and Inf passes.",
            parts={"update": isnan_of_the_norm},
        ),
        caution(),
    ),
    cause="bad_input_data",
    module="data",
)

LOST_WINDOW = Fault(
    name="lost_window",
    title="one bad micro-batch, and the whole accumulation window is thrown away",
    story=(
        "The latents of some texts were never computed and are NaN in the cache. Gradients are accumulated over four "
        "micro-batches, the loop finds the sum bad, clears it and continues: three good micro-batches are lost with "
        "one."
    ),
    damage="Finite, and more than half of all steps are never taken; the loss stays well above the clean run's.",
    answer="Drops the bad micro-batch, keeps the others, takes every step; names the latent and the sample.",
    parts={"prepare": missing_latents, "update": skip_window},
    settings={"training.gradient_accumulation_steps": 4, "training.train_batch_size": 8, "model.depth": 1},
    remedies=(
        Remedy(
            name="more accumulation",
            story="Accumulate over 8 micro-batches of 4, 'to reduce the effective batch'.",
            result="The effective batch is the same, a window holds as many bad texts, and as many windows are lost.",
            settings={"training.gradient_accumulation_steps": 8, "training.train_batch_size": 4},
        ),
        caution(),
    ),
    cause="bad_input_data",
    module="data",
)
