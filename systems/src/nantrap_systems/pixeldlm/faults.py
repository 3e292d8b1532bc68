"""The faults of pixeldlm, each a few lines that take the place of a repaired part, and what was tried against them.

A part is written as one finds it in projects: the same arguments, the same weights, another line in the middle.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nantrap.ops import AdaLNZero, MaskedAttention, masked_mse
from nantrap_systems.pixeldlm.data import Batch
from nantrap_systems.system import Fault, Remedy, Run, lower_rate_and_clip
from nantrap_systems.updates import step_and_clear, zero_bad_gradients

# ---- attention


def majority(pixels_BLP: Tensor) -> Tensor:
    """A patch counts if more than half of its pixels are tokens: a text of 32 characters has no such patch."""
    return pixels_BLP.float().mean(-1) > 0.5


class FilledMaskAttention(MaskedAttention):
    """softmax(q·kᵀ/√d)·v with `masked_fill(mask == 0, -inf)` before the softmax, as in the project."""

    def forward(self, x_BLD: Tensor, mask: Tensor | None = None) -> Tensor:
        assert mask is not None
        q, k, v = self.qkv(x_BLD).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = self.hide(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), mask[:, None, None, :])
        out: Tensor = self.out((self.weights(scores) @ v).transpose(1, 2).flatten(-2))
        return out

    def hide(self, scores: Tensor, mask: Tensor) -> Tensor:
        """The scores with -inf where the mask is False."""
        return scores.masked_fill(~mask, -math.inf)

    def weights(self, scores: Tensor) -> Tensor:
        """The attention weights."""
        return scores.softmax(dim=-1)


class TestedAttention(FilledMaskAttention):
    """A remedy: weights of 0 if everything is masked. `all()` asks about the batch, not about the row."""

    def weights(self, scores: Tensor) -> Tensor:
        if (scores == -math.inf).all():
            return torch.zeros_like(scores)
        return scores.softmax(dim=-1)


class CleanedAttention(FilledMaskAttention):
    """A remedy: NaN weights become 0. The backward pass of `masked_fill` puts 0 where the NaN gradients are."""

    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-1).nan_to_num(0.0)


class CleanedAdditiveAttention(CleanedAttention):
    """The same remedy where a mask of 0 and -inf is added: nothing removes the NaN that softmax sends back."""

    def hide(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores + torch.zeros(mask.shape).masked_fill(~mask, -math.inf)


# ---- loss


def skip_bad_output(predicted: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """A remedy: `continue` if the prediction is not finite. A loss of nothing leaves every gradient `None`."""
    if not predicted.isfinite().all():
        return torch.zeros((), requires_grad=True)
    return masked_mse(predicted, target, mask)


def product_loss(predicted: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Σ m·(x̂ - x)² / Σ m by a product with the mask: 0 · NaN is NaN."""
    kept = mask.expand_as(target)
    return (kept * (predicted - target) ** 2).sum() / kept.sum()


def filled_loss(predicted: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """A remedy: a loss of NaN becomes 0."""
    return product_loss(predicted, target, mask).nan_to_num(0.0)


def nan_padding(batch: Batch) -> Batch:
    """Padding marked by NaN, as missing values are in a data frame: here in the images of one text in 40."""
    missing = _rare(batch)[:, None, None, None] & ~batch.mask[..., None]
    return batch._replace(image=batch.image.masked_fill(missing, math.nan))


def half_loss(predicted: Tensor, target: Tensor, mask: Tensor, *, eps: float = 1e-8) -> Tensor:
    """The mean of Σ m·(x̂ - x)² / (Σ m + ε) over images, in the precision of the prediction."""
    kept = mask.to(predicted.dtype).expand_as(predicted)
    error = kept * (predicted - target.to(predicted.dtype)) ** 2
    return (error.sum((1, 2, 3)) / (kept.sum((1, 2, 3)) + eps)).mean()


def half_loss_larger_eps(predicted: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """A remedy: an ε that float16 can hold. Its inverse does not fit: Inf · 0 in the backward pass."""
    return half_loss(predicted, target, mask, eps=1e-6)


def empty_texts(batch: Batch) -> Batch:
    """One text in 40 is empty: nothing but padding."""
    return batch._replace(mask=batch.mask & ~_rare(batch)[:, None, None])


def _rare(batch: Batch) -> Tensor:
    """Always the same texts: chosen by the sum of their bytes."""
    return (255 * batch.image.double()).round().long().sum((1, 2, 3)) % 40 == 7


# ---- normalisation


class HalfAdaLN(AdaLNZero):
    """x / (rms(x) + ε) in the precision of the tokens; ε = 1e-8 is 0 in float16."""

    epsilon = 1e-8

    def forward(self, x_BLD: Tensor, condition_BC: Tensor) -> tuple[Tensor, Tensor]:
        shift, scale, gate = self.linear(F.silu(condition_BC)).unsqueeze(1).chunk(3, -1)
        return self.normalise(x_BLD.half()) * (1 + scale) + shift, gate

    def normalise(self, x: Tensor) -> Tensor:
        """The RMS norm, as the project wrote it, in half precision. (Autocast would take `x.norm()` in float32.)"""
        with torch.autocast("cpu", enabled=False):
            norm = x.norm(dim=-1, keepdim=True) * (x.shape[-1] ** -0.5)
            normed: Tensor = x / (norm + self.epsilon)
            return normed


class ProjectAdaLN(HalfAdaLN):
    """A remedy, and what the project had: an ε of 1e-6, which float16 can hold."""

    epsilon = 1e-6


class FilledAdaLN(HalfAdaLN):
    """A remedy: NaN becomes 0 behind the norm. The division has kept its 0 for the backward pass."""

    def normalise(self, x: Tensor) -> Tensor:
        return super().normalise(x).nan_to_num(0.0)


class LargeAdaLN(HalfAdaLN):
    """x · rsqrt(mean(x²)) of tokens that have grown to thousands: x² is Inf in float16, its inverse root 0, so is x."""

    def normalise(self, x: Tensor) -> Tensor:
        x = 1000 * x
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-8)


class GrownAdaLN(AdaLNZero):
    """x · (1 + scale) + shift in the precision of the condition, with a scale that has grown to 3e4."""

    grown = 3e4

    def reset_parameters(self) -> None:
        super().reset_parameters()
        _, scale, _ = self.linear.bias.data.chunk(3)
        scale.fill_(self.grown)

    def forward(self, x_BLD: Tensor, condition_BC: Tensor) -> tuple[Tensor, Tensor]:
        shift, scale, gate = self.linear(F.silu(condition_BC)).unsqueeze(1).chunk(3, -1)
        normed = F.rms_norm(x_BLD, x_BLD.shape[-1:]).to(scale.dtype)
        return normed * (1 + scale) + shift, gate


# ---- scaler


def new_scaler(run: Run) -> None:
    """A GradScaler made again each epoch: it forgets the scale it had found."""
    run.scaler = torch.amp.GradScaler("cpu")


def clip_without_unscale(run: Run) -> bool:
    """Clip what is still multiplied by the scale: a norm of 1 is left, and 1/65536 of it after unscaling."""
    assert run.max_grad_norm is not None
    nn.utils.clip_grad_norm_(run.model.parameters(), run.max_grad_norm)
    return step_and_clear(run)


_HALF = {
    "model.hidden_size": 32,
    "model.pixel_size": 16,
    "model.depth": 1,
    "data.image_size": 8,
    "training.batch_size": 8,
    "training.mixed_precision": "fp16",
    "training.steps_per_epoch": 10,
}  # half precision is slow on a CPU, so the model is smaller
_UNSCALED = {**_HALF, "training.loss_scaling": False}


def caution(rate: float) -> Remedy:
    """What is usually tried first."""
    return lower_rate_and_clip({"training.learning_rate": rate, "training.max_grad_norm": 0.1})


CAUTION = caution(1e-3)

SHORT_TEXT = Fault(
    name="short_text",
    title="a short text whose condition was dropped has no key to attend to",
    story=(
        "A patch counts only if more than half of its pixels are tokens, so a text of 32 characters or fewer has no "
        "patch that counts. As long as its condition is there, attention has something to look at; when the condition "
        "is dropped, as it is for one text in twenty, every key is masked, softmax is 0/0, and through the weights the "
        "whole batch is lost."
    ),
    damage="NaN loss at the first such batch, NaN weights from then on.",
    answer="Skips the batch, names the softmax, its row and the sample, proves it with a masked softmax.",
    parts={"attention": FilledMaskAttention, "counts": majority},
    remedies=(
        Remedy(
            name="if all(-inf)",
            story="`if (scores == -inf).all()`: weights of 0 when everything is masked.",
            result="Asks about the batch, not about the row: in a batch with one longer text it is still NaN.",
            parts={"attention": TestedAttention},
        ),
        Remedy(
            name="nan_to_num",
            story="`nan_to_num` behind the softmax.",
            result=(
                "Holds here: `masked_fill` sends 0 back where the NaN gradients are. Where the mask is added instead, "
                "the weights are NaN one step later."
            ),
            holds=True,
            parts={"attention": CleanedAttention},
        ),
        Remedy(
            name="skip bad output",
            story="`continue` if the model's output is not finite, as the project did.",
            result="Holds: no step is taken. Every batch with such a text is thrown away whole, and no cause is named.",
            holds=True,
            parts={"reduce": skip_bad_output},
        ),
        Remedy(
            name="zero bad gradients",
            story="A parameter whose gradient is bad gets a gradient of 0, then the optimizer steps.",
            result="Finite, but momentum and decay move the weights though nothing was learned, and no cause is named.",
            parts={"update": zero_bad_gradients},
        ),
        CAUTION,
    ),
    cause="softmax_fully_masked_row",
    module="blocks.0.attention",
    op="aten._softmax",
)

ADDED_MASK = Remedy(
    name="nan_to_num, added mask",
    story="`nan_to_num` behind the softmax, with a mask that is added.",
    result="The loss is finite, its gradient is NaN: the weights are lost one step later.",
    parts={"attention": CleanedAdditiveAttention},
)
"""Not shown, but tested: the form in which this remedy does not hold."""

FAULTS = (
    SHORT_TEXT,
    Fault(
        name="mask_product",
        title="padding is NaN, and a product with the mask does not remove it",
        story=(
            "Padding is marked by NaN, as missing values are in a data frame, and the loss multiplies by the mask. "
            "0 · NaN is NaN, in the value and in the gradient."
        ),
        damage="NaN loss at the first such text, NaN weights from then on.",
        answer="Skips the batch, names the tensor and the sample, proves it by leaving the sample out.",
        parts={"reduce": product_loss, "prepare": nan_padding},
        remedies=(
            Remedy(
                name="nan_to_num(loss)",
                story="A loss of NaN becomes 0.",
                result="The loss reads 0.0 and looks perfect; its gradient is NaN, and so are the weights.",
                parts={"reduce": filled_loss},
            ),
            CAUTION,
        ),
        cause="where_unselected_branch",
        module="data",
    ),
    Fault(
        name="half_epsilon",
        title="an epsilon of 1e-8 in a half-precision denominator",
        story=(
            "The loss of an image is divided by its number of tokens plus 1e-8, in the precision of the prediction. In "
            "float16 1e-8 is 0, so an empty text is 0/0. (In bfloat16, which reaches down to 1e-38, it is not.)"
        ),
        damage="NaN loss at the first empty text, NaN weights from then on.",
        answer="Skips the batch, names the division and its denominator, proves it with the safe form.",
        parts={"reduce": half_loss, "prepare": empty_texts},
        settings=_UNSCALED,
        remedies=(
            Remedy(
                name="eps 1e-6",
                story="An epsilon that float16 can hold.",
                result="The loss is finite; 1/1e-6 is not: Inf · 0 in the backward pass, and the weights are NaN.",
                parts={"reduce": half_loss_larger_eps},
            ),
            CAUTION,
        ),
        cause="empty_reduction",
        module="loss",
        op="aten.div",
    ),
    Fault(
        name="rmsnorm_zero_rows",
        title="RMSNorm of a row of zeros in float16",
        story=(
            "The slot of a dropped condition is a row of zeros. The norm is x / (rms + 1e-8), and 1e-8 is 0 in "
            "float16: 0/0 is NaN. The row is masked, but attention multiplies it by a weight of 0, and 0 · NaN is NaN. "
            "(The project suspected this line; its epsilon was 1e-6, and with that it is not the cause.)"
        ),
        damage="NaN loss at the first dropped condition, NaN weights from then on.",
        answer="Skips the batch, names the norm and the epsilon that has no effect, proves it by a run in float32.",
        parts={"adaln": HalfAdaLN, "attention": FilledMaskAttention},
        settings={**_UNSCALED, "data.condition_dropout": 0.02},
        remedies=(
            Remedy(
                name="nan_to_num",
                story="`nan_to_num` behind the norm.",
                result="The loss is finite; the division has kept its 0, the gradient is NaN, and so are the weights.",
                parts={"adaln": FilledAdaLN},
            ),
            Remedy(
                name="eps 1e-6",
                story="An epsilon that float16 can hold, as the project had it.",
                result="Holds: 0/1e-6 is 0, and a masked row sends no gradient back that 1/1e-6 could multiply.",
                holds=True,
                parts={"adaln": ProjectAdaLN},
            ),
            CAUTION,
        ),
        cause="eps_underflow_half",
        module="blocks.0.before_attention",
        op="aten.div",
    ),
    Fault(
        name="rmsnorm_large_values",
        title="RMSNorm of values above 256 in float16",
        story=(
            "Tokens have grown to some thousands. Their squares are Inf in float16, the inverse root of Inf is 0, and "
            "the norm gives 0 for every token: the forward pass is finite. In the backward pass, that 0 is "
            "multiplied by the Inf."
        ),
        damage="A finite loss on the step whose gradient is NaN, NaN weights from there on.",
        answer="Skips such steps, names the norm and the line of the square.",
        parts={"adaln": LargeAdaLN},
        settings=_UNSCALED,
        remedies=(CAUTION,),
        cause="fp16_forward_overflow",
        module="blocks.*.before_*",
    ),
    Fault(
        name="adaln_scale",
        title="an AdaLN scale that has grown past what float16 can hold",
        story=(
            "Nothing holds the scale of an adaptive norm back. Resumed with a scale of 30,000, a normalised token of 3 "
            "is 90,000 in float16: Inf, then NaN. The GradScaler treats every step as an overflow, skips it "
            "and halves its scale."
        ),
        damage="Weights stay finite and never move again; the loss scale falls towards 0.",
        answer="Stops after its budget of skips and rollbacks, the norm and its magnitude named, proven in float32.",
        parts={"adaln": GrownAdaLN, "attention": FilledMaskAttention},
        settings=_HALF,
        remedies=(CAUTION,),
        cause="fp16_forward_overflow",
        module="blocks.0.before_attention",
        op="aten.mul",
    ),
    Fault(
        name="new_scaler",
        title="a GradScaler made again each epoch",
        story=(
            "The scaler begins each epoch at 65,536 and must find its scale again; every try is a skipped step. Epochs "
            "here are 10 steps, and gradients are large enough that it has to search."
        ),
        damage="Most steps of every epoch are skipped silently.",
        answer=(
            "Where the gradients are NaN and not only too large: the scale, which was set to 65,536 again. The loop is "
            "as it was, and loses as many steps. The summary of `nantrap run` counts the steps that the scaler left "
            "out and asks whether it is made anew again and again."
        ),
        cause="loss_scale_misuse",
        parts={"begin_epoch": new_scaler},
        loop=True,
        notice="*made anew again and again*",
        settings={**_HALF, "training.loss_weight": 1024.0, "model.known_frequencies": False},
        remedies=(CAUTION,),
    ),
    Fault(
        name="clip_before_unscale",
        title="gradients clipped while they are still multiplied by the loss scale",
        story=(
            "The norm of scaled gradients is thousands, so clipping to 1 always applies, and unscaling then leaves "
            "1/65,536. SGD does not move. AdamW divides by the gradient's size and is hardly affected, until a model "
            "is so large that what is left lies below its eps."
        ),
        damage="Finite in every step, and nothing is learned.",
        answer=(
            "No incident: every number is finite, and the run is as bad as before. `nantrap doctor` reports the order "
            "(NT855) where backward, clip and step stand in one function; `guard.step()` unscales first."
        ),
        parts={"update": clip_without_unscale},
        loop=True,
        settings={
            **_HALF,
            "training.optimizer": "sgd",
            "training.learning_rate": 3.0,
            "model.known_frequencies": False,
        },
        remedies=(caution(0.3),),
    ),
)
