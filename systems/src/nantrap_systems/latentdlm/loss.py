"""The loss: masked bytes by cross-entropy, the latent by a squared error, and the evaluation.

    text     a byte is masked with probability (1 - 1e-4)·t            Σ m·CE / max(Σ m, 1)
    latent   z_t = √ᾱ·z + √(1-ᾱ)·ε, ᾱ a cosine of its own time         mean (ε̂ - ε)², or of v or z

    loss = loss_scale · (text_loss_weight · text + latent_loss_weight · latent)

In the mode latent-to-text the latent is clean and only the text counts, in text-to-latent the reverse; unconditional
texts and latents do not see each other, and both count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nantrap.ops import cosine_schedule, cross_entropy, masked_mse, signal_and_noise
from nantrap_systems.latentdlm.data import LATENT_TO_TEXT, MASK, TEXT_TO_LATENT, Batch
from nantrap_systems.latentdlm.model import joint_mask
from nantrap_systems.latentdlm.settings import LossSettings
from nantrap_systems.precision import autocast
from nantrap_systems.system import Evaluation, Terms

IGNORED = -100
MASK_SHARE = 1 - 1e-4
LAST_TIME = 1 - 1e-5
"""Times of the latent lie below it."""
EVALUATION_TIMES = (0.2, 0.5, 0.8)
"""Accuracy is taken at the first: guess a fifth of the bytes from the others and the latent."""


class Noised(NamedTuple):
    """A batch on its way to noise: what the model sees, and what it is to find.

    `tokens` and `masked` are [B, L], `latent` and `noise` [B, Z]; the times, `alpha_bar` and whether the latent
    `counts` are [B].
    """

    tokens: Tensor
    masked: Tensor
    latent: Tensor
    noise: Tensor
    text_t: Tensor
    latent_t: Tensor
    alpha_bar: Tensor
    counts: Tensor


Schedule = Callable[[Tensor], Tensor]
Times = Callable[[Batch], tuple[Tensor, Tensor]]
"""The times of text and latent [B] of a batch."""
Levels = Callable[[Tensor], tuple[Tensor, Tensor]]
"""√ᾱ and √(1-ᾱ) of ᾱ."""
TextLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of logits [B, L, V], the true tokens [B, L] and which of them are masked [B, L]."""
LatentLoss = Callable[[Tensor, Batch, Noised, str], Tensor]
"""Of a prediction [B, Z], the batch, the noised batch, and what is predicted."""


def random_times(batch: Batch) -> tuple[Tensor, Tensor]:
    """Times of text and latent, each drawn separately; those of the latent end a little before 1."""
    text_t, latent_t = torch.rand(2, len(batch.tokens))
    return text_t, latent_t.clamp(max=LAST_TIME)


def noise(
    batch: Batch,
    text_t_B: Tensor,
    latent_t_B: Tensor,
    uniform_BL: Tensor,
    noise_BZ: Tensor,
    schedule: Schedule,
    *,
    levels: Levels = signal_and_noise,
) -> Noised:
    """The batch at these times, by these random numbers; what its mode keeps clean is at time 0."""
    text_t = torch.where(batch.mode == TEXT_TO_LATENT, 0.0, text_t_B)
    latent_t = torch.where(batch.mode == LATENT_TO_TEXT, 0.0, latent_t_B)
    masked = (uniform_BL < MASK_SHARE * text_t[:, None]) & batch.attention_mask
    alpha_bar = schedule(latent_t)
    signal, rest = levels(alpha_bar[:, None])
    counts = batch.mode != LATENT_TO_TEXT
    latent = torch.where(counts[:, None], signal * batch.latent + rest * noise_BZ, batch.latent)
    tokens = torch.where(masked, MASK, batch.tokens)
    return Noised(tokens, masked, latent, noise_BZ, text_t, latent_t, alpha_bar, counts)


def predict(model: nn.Module, batch: Batch, noised: Noised, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """Logits [B, L, V] and the predicted latent [B, Z], under autocast if there is a dtype."""
    mask = joint_mask(batch.attention_mask, batch.mode)
    with autocast(dtype):
        logits, predicted = model(noised.tokens, noised.latent, noised.text_t, noised.latent_t, mask)
    return logits, predicted


def masked_cross_entropy(logits_BLV: Tensor, tokens_BL: Tensor, masked_BL: Tensor) -> Tensor:
    """Σ m·CE / max(Σ m, 1); 0 with gradient 0 where nothing is masked."""
    return cross_entropy(logits_BLV.flatten(0, 1), torch.where(masked_BL, tokens_BL, IGNORED).flatten())


def latent_mse(predicted_BZ: Tensor, batch: Batch, noised: Noised, prediction: str) -> Tensor:
    """The mean squared error on ε, on v = √ᾱ·ε - √(1-ᾱ)·z, or on z, over latents that count."""
    signal, rest = signal_and_noise(noised.alpha_bar[:, None])
    targets = {
        "epsilon": noised.noise,
        "velocity": signal * noised.noise - rest * batch.latent,
        "sample": batch.latent,
    }
    return masked_mse(predicted_BZ, targets[prediction], noised.counts[:, None])


class TrainingLoss:
    """The loss of a batch at random times, by its terms.

    Args:
        model: called with the noised batch.
        settings: weights of the terms.
        dtype: of autocast.
        schedule: ᾱ by time.
        times: draws the times of a batch.
        levels: the shares of latent and noise.
        text_loss: the text term.
        latent_loss: the latent term.
        finish: the last word on the terms.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: LossSettings,
        *,
        dtype: torch.dtype | None = None,
        schedule: Schedule = cosine_schedule,
        times: Times = random_times,
        levels: Levels = signal_and_noise,
        text_loss: TextLoss = masked_cross_entropy,
        latent_loss: LatentLoss = latent_mse,
        finish: Callable[[Mapping[str, Tensor]], Terms] = lambda terms: terms,
    ) -> None:
        self.model, self.settings, self.dtype = model, settings, dtype
        self.times, self.levels = times, levels
        self.schedule, self.text_loss, self.latent_loss, self.finish = schedule, text_loss, latent_loss, finish

    def __call__(self, batch: Batch) -> Terms:
        text_t, latent_t = self.times(batch)
        uniform, gaussian = torch.rand(batch.tokens.shape), torch.randn(batch.latent.shape)
        noised = noise(batch, text_t, latent_t, uniform, gaussian, self.schedule, levels=self.levels)
        logits, predicted = predict(self.model, batch, noised, self.dtype)
        settings, terms = self.settings, {}
        if settings.text_loss_weight:
            found = self.text_loss(logits, batch.tokens, noised.masked)
            terms["text"] = settings.loss_scale * settings.text_loss_weight * found
        if settings.latent_loss_weight:
            found = self.latent_loss(predicted, batch, noised, settings.latent_prediction)
            terms["latent"] = settings.loss_scale * settings.latent_loss_weight * found
        return self.finish(terms)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    held_out: Batch,
    *,
    prediction: str = "epsilon",
    dtype: torch.dtype | None = None,
    schedule: Schedule = cosine_schedule,
) -> Evaluation:
    """Text from the latent plus latent from the text over fixed times, and the share of masked bytes guessed right."""
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(held_out.tokens.shape, generator=generator)
    gaussian = torch.randn(held_out.latent.shape, generator=generator)

    def at(time: float, mode: int) -> tuple[Batch, Noised, Tensor, Tensor]:
        batch = held_out._replace(mode=torch.full_like(held_out.mode, mode))
        t_B = torch.full((len(batch.tokens),), time)
        noised = noise(batch, t_B, t_B, uniform, gaussian, schedule)
        return batch, noised, *predict(model, batch, noised, dtype)

    training = model.training
    model.eval()
    losses, right = [], []
    for time in EVALUATION_TIMES:
        batch, noised, logits, _ = at(time, LATENT_TO_TEXT)
        losses.append(float(masked_cross_entropy(logits, batch.tokens, noised.masked)))
        right.append(accuracy(logits, batch.tokens, noised.masked))
        batch, noised, _, predicted = at(time, TEXT_TO_LATENT)
        losses.append(float(latent_mse(predicted, batch, noised, prediction)))
    model.train(training)
    return Evaluation(sum(losses) / len(EVALUATION_TIMES), right[0])


def accuracy(logits_BLV: Tensor, tokens_BL: Tensor, masked_BL: Tensor) -> float:
    """The share of masked bytes whose largest logit is the right one; NaN is never right."""
    found = logits_BLV[masked_BL]
    right = (found.nan_to_num().argmax(-1) == tokens_BL[masked_BL]) & found.isfinite().all(-1)
    return right.float().mean().item()
