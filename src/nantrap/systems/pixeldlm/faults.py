"""The faults of pixeldlm, each a few lines that take the place of a repaired part, and what was tried against them.

A part is written as one finds it in projects: the same arguments, the same weights, another line in the middle.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nantrap.ops import AdaLNZero, MaskedAttention
from nantrap.systems.pixeldlm.data import Batch
from nantrap.systems.system import Fault, Remedy, Run, standard_update, step_and_clear

# ---- attention


def majority(pixels_BLP: Tensor) -> Tensor:
    """A patch counts if more than half of its pixels are tokens: a text of 32 characters has no such patch."""
    return pixels_BLP.float().mean(-1) > 0.5


class AdditiveAttention(MaskedAttention):
    """softmax(q·kᵀ/√d + mask)·v with a mask of 0 and -inf, as it is written everywhere."""

    def forward(self, x_BLD: Tensor, mask: Tensor | None = None) -> Tensor:
        assert mask is not None
        q, k, v = self.qkv(x_BLD).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        bias = torch.zeros(mask.shape).masked_fill(~mask, -math.inf)[:, None, None, :]
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
        out: Tensor = self.out((self.weights(scores) @ v).transpose(1, 2).flatten(-2))
        return out

    def weights(self, scores: Tensor) -> Tensor:
        """The attention weights."""
        return scores.softmax(dim=-1)


class TestedAttention(AdditiveAttention):
    """A remedy: uniform weights if everything is masked. `all()` asks about the batch, not about the row."""

    def weights(self, scores: Tensor) -> Tensor:
        if (scores == -math.inf).all():
            return torch.zeros_like(scores)
        return scores.softmax(dim=-1)


class FilledAttention(AdditiveAttention):
    """A remedy: NaN weights become 0. The softmax has kept its NaN for the backward pass."""

    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-1).nan_to_num(0.0)


class MaskFilledAttention(MaskedAttention):
    """The same remedy where the mask is filled in instead of added: then the backward pass fills in zeros, too."""

    def forward(self, x_BLD: Tensor, mask: Tensor | None = None) -> Tensor:
        assert mask is not None
        q, k, v = self.qkv(x_BLD).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~mask[:, None, None, :], -math.inf)
        weights = scores.softmax(dim=-1).nan_to_num(0.0)
        out: Tensor = self.out((weights @ v).transpose(1, 2).flatten(-2))
        return out


def zero_bad_gradients(run: Run) -> bool:
    """A remedy: a parameter whose gradient is bad gets a gradient of 0, and the step is taken."""
    for parameter in run.model.parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            parameter.grad.zero_()
    return standard_update(run)


# ---- loss


def product_loss(predicted: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Σ m·(x̂ - x)² / Σ m by a product with the mask: 0 · NaN is NaN."""
    kept = mask.expand_as(target)
    return (kept * (predicted - target) ** 2).sum() / kept.sum()


def filled_loss(predicted: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """A remedy: a loss of NaN becomes 0."""
    return product_loss(predicted, target, mask).nan_to_num(0.0)


def nan_padding(batch: Batch) -> Batch:
    """Padding marked by NaN, as missing values are in a data frame: here in the images of one text in a hundred."""
    marked = batch.image.double().abs().sum((1, 2, 3)).mul(1e6).long() % 100 == 0
    missing = marked[:, None, None, None] & ~batch.mask[..., None]
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
    """One text in a hundred is empty: nothing but padding."""
    empty = batch.image.double().abs().sum((1, 2, 3)).mul(1e6).long() % 100 == 0
    return batch._replace(mask=batch.mask & ~empty[:, None, None])


# ---- normalisation


class HalfAdaLN(AdaLNZero):
    """x · rsqrt(mean(x²) + ε) in the precision of the tokens; ε = 1e-8 is 0 in float16."""

    def forward(self, x_BLD: Tensor, condition_BC: Tensor) -> tuple[Tensor, Tensor]:
        shift, scale, gate = self.linear(F.silu(condition_BC)).unsqueeze(1).chunk(3, -1)
        return self.normalise(x_BLD.half()) * (1 + scale) + shift, gate

    def normalise(self, x: Tensor) -> Tensor:
        """The RMS norm."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-8)


class FilledAdaLN(HalfAdaLN):
    """A remedy: NaN becomes 0 behind the norm. The product in it has kept its Inf for the backward pass."""

    def normalise(self, x: Tensor) -> Tensor:
        return super().normalise(x).nan_to_num(0.0)


class LargeAdaLN(HalfAdaLN):
    """The same norm of tokens a thousand times as large: x² is Inf in float16, its inverse root 0, and so is x."""

    def normalise(self, x: Tensor) -> Tensor:
        return super().normalise(1000 * x)


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
    """A GradScaler made anew each epoch: it forgets the scale it had found."""
    run.scaler = torch.amp.GradScaler("cpu")


def clip_without_unscale(run: Run) -> bool:
    """Clip what is still multiplied by the scale: a norm of 1 is left, and 1/65536 of it after unscaling."""
    assert run.max_grad_norm is not None
    nn.utils.clip_grad_norm_(run.model.parameters(), run.max_grad_norm)
    return step_and_clear(run)


_SMALL_HALF = {
    "training.mixed_precision": "fp16",
    "training.batch_size": 8,
    "model.hidden_size": 64,
    "training.steps_per_epoch": 10,
}

FAULTS = tuple(
    Fault(name=n, title="", story="", damage="", answer="", parts=p, settings=s, remedies=r)
    for n, p, s, r in [
        ("short_text", {"attention": AdditiveAttention, "counts": majority}, {}, (
            Remedy(name="all", story="", result="", parts={"attention": TestedAttention}),
            Remedy(name="nan_to_num", story="", result="", parts={"attention": FilledAttention}),
            Remedy(name="nan_to_num fill", story="", result="", parts={"attention": MaskFilledAttention}),
            Remedy(name="zero bad", story="", result="", parts={"update": zero_bad_gradients}),
            )),
        ("mask_product", {"reduce": product_loss, "prepare": nan_padding}, {}, (Remedy(name="nan_to_num", story="", result="", parts={"reduce": filled_loss}),)),
        ("half_epsilon", {"reduce": half_loss, "prepare": empty_texts}, _SMALL_HALF, (Remedy(name="larger", story="", result="", parts={"reduce": half_loss_larger_eps}),)),
        ("rmsnorm_zero_rows", {"adaln": HalfAdaLN}, {**_SMALL_HALF, "data.condition_dropout": 0.02}, (Remedy(name="fill", story="", result="", parts={"adaln": FilledAdaLN}),)),
        ("rmsnorm_large", {"adaln": LargeAdaLN}, _SMALL_HALF, ()),
        ("adaln_scale", {"adaln": GrownAdaLN}, _SMALL_HALF, ()),
        ("new_scaler", {"begin_epoch": new_scaler}, _SMALL_HALF, ()),
        ("clip_scaled", {"update": clip_without_unscale}, _SMALL_HALF, ()),
    ]
)
