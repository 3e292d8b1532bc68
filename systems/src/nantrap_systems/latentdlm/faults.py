"""The faults of latentdlm, each a few lines that take the place of a repaired part, and what was tried against them.

A part is written as one finds it in projects: the same arguments, the same weights, another line in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from nantrap_systems.latentdlm.data import Batch
from nantrap_systems.latentdlm.loss import Noised, random_times
from nantrap_systems.latentdlm.model import JointAttention, LearnedSchedule
from nantrap_systems.system import Fault, Remedy, Run, lower_rate_and_clip
from nantrap_systems.updates import (
    skip_bad_gradients,
    skip_bad_norm,
    step_and_clear,
    zero_bad_gradients,
)

# ---- what the faults share


def caution(rate: float = 5e-4) -> Remedy:
    """A tenth of the learning rate and of the norm."""
    return lower_rate_and_clip({"optimizer.lr": rate, "optimizer.grad_clip_norm": 0.05})


# ---- the loop: what is tested before a step, and what is thrown away with it

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


class CoarseSchedule(LearnedSchedule):
    """ᾱ = exp(-rate·t) in bfloat16: it is exactly 1 for rate·t below 0.002."""

    def forward(self, t: Tensor) -> Tensor:
        return torch.exp(-self.rate.bfloat16() * t.bfloat16())


def roots(alpha_bar: Tensor) -> tuple[Tensor, Tensor]:
    """√ᾱ and √(1-ᾱ), as they are written."""
    return alpha_bar.sqrt(), (1 - alpha_bar).sqrt()


def a_text_of_dashes(batch: Batch, number: int) -> Batch:
    """Every 40th batch, from the 14th on, begins with a text of dashes."""
    if number % 40 != 13:
        return batch
    tokens = batch.tokens.clone()
    tokens[0] = ord("-")
    return batch._replace(tokens=tokens)


def almost_zero_for_dashes(batch: Batch) -> tuple[Tensor, Tensor]:
    """Times of which that of a text of dashes is almost 0: the rare draw, in batches that the program fixes."""
    text_t, latent_t = random_times(batch)
    return text_t, torch.where((batch.tokens == ord("-")).all(-1), ALMOST_ZERO, latent_t)


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


def missing_latents(batch: Batch, number: int) -> Batch:
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
        "prepare": a_text_of_dashes,
        "times": almost_zero_for_dashes,
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
            parts={"update": skip_bad_norm},
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
            parts={"update": skip_bad_norm},
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
    cause="where_unselected_branch",
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
    parts={"prepare": missing_latents, "update": skip_bad_gradients},
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


# ---- the model: a query without a key, and weights that are too coarse to move


class AdditiveAttention(JointAttention):
    """softmax(q·kᵀ/√d + mask)·v with a mask of 0 and -inf."""

    masked = -math.inf

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        bias = torch.zeros(mask.shape).masked_fill(~mask, self.masked)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
        return self.weights(scores) @ v

    def weights(self, scores: Tensor) -> Tensor:
        """The attention weights."""
        return scores.softmax(dim=-1)


class FilledAttention(AdditiveAttention):
    """A remedy: NaN weights become 0. The softmax has kept its NaN for the backward pass."""

    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-1).nan_to_num(0.0)


class FiniteMaskAttention(AdditiveAttention):
    """A remedy: a large negative number in the place of -inf. A row of nothing else is even."""

    masked = -1e9


ZERO_ATTENTION_MASK = Fault(
    name="zero_attention_mask",
    title="an attention mask of zeros leaves a text nothing to attend to",
    story=(
        "A text whose length is a multiple of 64 leaves an empty piece behind, with an attention mask of zeros. "
        "In the modes with a condition its queries still see the latent. In the unconditional mode they see nothing, "
        "softmax is 0/0, and the loss of the whole batch is NaN."
    ),
    damage="NaN loss at the first empty text, NaN weights from then on.",
    answer="Drops the micro-batch, names the softmax, its rows and the sample, proves it with a masked softmax.",
    parts={"attention": AdditiveAttention},
    settings={"data.drop_empty": False, "training.mode": "unconditional"},
    remedies=(
        Remedy(
            name="nan_to_num",
            story="`nan_to_num` behind the softmax.",
            result="The loss is finite, its gradient is NaN: the weights are lost one step later.",
            parts={"attention": FilledAttention},
        ),
        Remedy(
            name="-1e9 for -inf",
            story="A large negative number in the mask.",
            result="Holds in float32: an empty text attends evenly to its padding, and nothing reads the result.",
            holds=True,
            parts={"attention": FiniteMaskAttention},
        ),
        caution(),
    ),
    cause="softmax_fully_masked_row",
    module="blocks.0.attention",
    op="aten._softmax",
)

PURE_BF16 = Fault(
    name="pure_bf16",
    title="weights in bfloat16, and a learning rate too small for them to move",
    story=(
        "The weights themselves are bfloat16, whose neighbouring numbers are 1/256 to 1/128 apart. Adam moves a weight "
        "by about the learning rate, so one that is 256 times as large is rounded back to where it was. The usual "
        "advice against NaN, a lower learning rate, freezes more of the model."
    ),
    damage="Finite in every step; much of the model never moves, and the loss stays above the clean run's.",
    answer=(
        "No incident: nothing is ever non-finite. `nantrap doctor` sees weights in bfloat16 and the small learning "
        "rate in the config. The repair is float32 weights under bfloat16 autocast."
    ),
    parts={},
    faulty_settings={"training.dtype": "pure_bf16"},
    loop=True,
    settings={
        "training.dtype": "bf16",
        "model.hidden_size": 32,
        "model.depth": 1,
        "training.train_batch_size": 4,
        "optimizer.lr": 1e-4,
        "training.warmup_steps": 1,
    },
    remedies=(replace(caution(1e-5), result="Freezes more of the model, and learns less."),),
    reported_by="doctor",
    code="NT817",
)


# ---- the loss: the cosine's end, and a batch without a masked token


def cosine(t: Tensor, *, offset: float = 0.008) -> Tensor:
    """cos²(π/2·(t + s)/(1 + s)) over its value at 0, as in the paper: 0 at t = 1."""
    start = math.cos(math.pi / 2 * offset / (1 + offset)) ** 2
    return torch.cos(math.pi / 2 * (t + offset) / (1 + offset)).square() / start


def restored(predicted_BZ: Tensor, noised: Noised) -> Tensor:
    """ẑ = (z_t - √(1-ᾱ)·ε̂) / √ᾱ: an error of ε̂ times √(1-ᾱ)/√ᾱ, 64,171 at t = 1 - 1e-5."""
    alpha_bar = noised.alpha_bar[:, None]
    return (noised.latent - (1 - alpha_bar).sqrt() * predicted_BZ) / alpha_bar.sqrt()


def restored_error(predicted_BZ: Tensor, batch: Batch, noised: Noised, prediction: str) -> Tensor:
    """The squared error of the latent that ε̂ leads back to."""
    error = (restored(predicted_BZ.float(), noised) - batch.latent).square().mean(-1)
    return error[noised.counts].sum() / noised.counts.sum().clamp(min=1)


def normalised_error(predicted_BZ: Tensor, batch: Batch, noised: Noised, prediction: str) -> Tensor:
    """A remedy: both sides are brought to length 1 before the squared error."""
    found, true = F.normalize(restored(predicted_BZ.float(), noised), dim=-1), F.normalize(batch.latent, dim=-1)
    error = (found - true).square().mean(-1)
    return error[noised.counts].sum() / noised.counts.sum().clamp(min=1)


def loss_or_zero(logits_BLV: Tensor, tokens_BL: Tensor, masked_BL: Tensor) -> Tensor:
    """The mean over masked tokens, or a new 0 if there is none: a tensor without a gradient function."""
    if not masked_BL.any():
        return torch.tensor(0.0)
    return F.cross_entropy(logits_BLV[masked_BL].float(), tokens_BL[masked_BL])


def loss_or_leaf(logits_BLV: Tensor, tokens_BL: Tensor, masked_BL: Tensor) -> Tensor:
    """A remedy: the new 0 may have a gradient."""
    return loss_or_zero(logits_BLV, tokens_BL, masked_BL) + torch.zeros((), requires_grad=True)


COSINE_END = Fault(
    name="cosine_end",
    title="the error of the restored latent, divided by a cosine that ends at 0",
    story=(
        "The latent loss is taken on the latent that the predicted noise leads back to, (z_t - √(1-ᾱ)·ε̂)/√ᾱ. At the "
        "cosine's end 1/√ᾱ is 64,171, so the squared error of one late sample is four thousand million times that of "
        "an early one. Nothing is ever NaN. The norm is that of this one sample, and clipping to 0.5 leaves nothing of "
        "the others, nor of the text."
    ),
    damage="Finite in every step; the loss reads thousands and jumps, and the text learns no more than letter counts.",
    answer="No incident: every number is finite. The guard warns of spikes once it has seen 50 steps, and skips none.",
    parts={"schedule": cosine, "latent_loss": restored_error},
    remedies=(
        Remedy(
            name="clamp(loss, 100)",
            story="Clamp the loss to 100.",
            result="Above 100 its gradient is 0, for the text as well.",
            parts={"finish": clamped},
        ),
        Remedy(
            name="F.normalize",
            story="Bring prediction and latent to length 1 before the error.",
            result="Another objective, blind to the length: the text learns, the latent's noise is not found.",
            parts={"latent_loss": normalised_error},
        ),
        caution(),
    ),
)

NO_MASKED_TOKEN = Fault(
    name="no_masked_token",
    title="a batch without a masked token gives a loss without a gradient function",
    story=(
        "Text is trained alone, one text at a time. At a small t none of its bytes is masked, which is the case for "
        "one text of n bytes in n + 1. The loss is then `torch.tensor(0.0)`, and backward has no graph to follow."
    ),
    damage="RuntimeError: element 0 of tensors does not require grad. The run is over.",
    answer="Ends as well, with an error that says what such a loss comes from; nothing of the step was applied.",
    parts={"text_loss": loss_or_zero},
    settings={
        "training.mode": "latent_to_text",
        "training.train_batch_size": 1,
        "training.gradient_accumulation_steps": 4,
        "loss.latent_loss_weight": 0.0,
    },
    remedies=(
        Remedy(
            name="requires_grad=True",
            story="Make the new 0 a leaf that takes a gradient.",
            result="Holds in one process: the same run as the repaired one, to the last digits.",
            holds=True,
            parts={"text_loss": loss_or_leaf},
        ),
        caution(),
    ),
    reported_by="guard",
    error="*the loss has no graph*",
)


# ---- several processes: one leaves a step out alone


def average_in_step(model: nn.Module, optimizer: Optimizer) -> nn.Module:
    """Processes average their gradients when the optimizer steps, as with Horovod, not in the backward pass."""

    def average(stepping: Optimizer, args: Any, kwargs: Any) -> None:
        for group in stepping.param_groups:
            for parameter in group["params"]:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    optimizer.register_step_pre_hook(average)
    return model


RANK_SKIPS_ALONE = Fault(
    name="rank_skips_alone",
    title="one process leaves a bad step out, and the others wait for it",
    story=(
        "Two processes train together and average their gradients when the optimizer steps. One gets a NaN latent, "
        "finds its own gradients bad and continues with the next batch. The other one waits, and is answered by the "
        "first "
        "one's next step: nothing is said, but the two are a step apart from there on, and the last one has no answer."
    ),
    damage="Gradients of different steps are averaged in silence; at the end a process waits for one that has gone.",
    answer="One decision for all: both leave the step out, latent and sample are named, the weights stay equal.",
    parts={"parallel": average_in_step, "update": skip_bad_gradients, "shares": shares_of_nothing},
    settings={
        "data.drop_empty": False,
        "training.train_batch_size": 16,
        "training.gradient_accumulation_steps": 1,
        "model.hidden_size": 32,
        "model.depth": 1,
    },
    remedies=(
        Remedy(
            name="zeros, together",
            story="A process with bad gradients sets them to 0 and steps with the others.",
            result="Holds: all take part. The good half of such a step counts half, and no cause is named.",
            holds=True,
            parts={"update": zero_bad_gradients},
        ),
    ),
    cause="bad_input_data",
    module="data",
    processes=2,
)

FAULTS = (
    ISNAN_ONLY,
    STATIC_SCALE_FAULT,
    NAN_NORM,
    ZERO_ATTENTION_MASK,
    COSINE_END,
    PURE_BF16,
    LOST_WINDOW,
    NO_MASKED_TOKEN,
    RANK_SKIPS_ALONE,
)
