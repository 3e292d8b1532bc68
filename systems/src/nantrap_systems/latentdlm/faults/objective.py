"""Faults of the loss: the cosine's end, and a batch without a masked token."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from nantrap_systems.latentdlm.data import Batch
from nantrap_systems.latentdlm.faults.caution import caution
from nantrap_systems.latentdlm.faults.update import clamped
from nantrap_systems.latentdlm.loss import Noised
from nantrap_systems.system import Fault, Remedy


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
)
