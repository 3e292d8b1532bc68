"""The loss: noise an image, predict the clean one, compare where there are tokens.

    x_t = α·x + (1-α)·ε,  α = 1 - t/T or a cosine        loss = Σ m·w·(x̂ - x)² / Σ m,  w = 1/max(1-α, 0.05)²

The error counts in units of the noise, and times are drawn as T·u²: at much noise a text cannot be read, and without
the weight those times decide the gradient. `weighting: none` and `time_power: 1` leave both out, as the project did.
The evaluation is the same on held-out texts at fixed times, and the share of tokens that come back right.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nantrap.ops import masked_mse
from nantrap_systems.pixeldlm.data import Batch, palette
from nantrap_systems.pixeldlm.model import PixelDLM
from nantrap_systems.pixeldlm.settings import DiffusionSettings
from nantrap_systems.precision import autocast
from nantrap_systems.system import Evaluation

Reduce = Callable[[Tensor, Tensor, Tensor], Tensor]
"""The loss of a prediction [B, H, W, 3], its target, and the mask [B, H, W, 1]."""

EVALUATION_TIMES = (0.05, 0.1, 0.15, 0.2, 0.4)
RECOVERY_TIME = 0.1
"""A moderate noise level: α = 0.9 blurs a byte by 28 of its 256 steps."""


def denoise(
    model: PixelDLM, batch: Batch, t_B: Tensor, noise: Tensor, diffusion: DiffusionSettings, dtype: torch.dtype | None
) -> Tensor:
    """The model's clean image of a batch at these times, under autocast if there is a dtype."""
    with autocast(dtype):
        clean: Tensor = model(*_seen(batch, t_B, noise, diffusion))
    return clean


def read(
    model: PixelDLM, batch: Batch, t_B: Tensor, noise: Tensor, diffusion: DiffusionSettings, dtype: torch.dtype | None
) -> Tensor:
    """The image of the characters that the model finds most likely; NaN stays NaN."""
    with autocast(dtype):
        logits = model.logits(*_seen(batch, t_B, noise, diffusion))
    return palette()[logits.nan_to_num().argmax(-1)] + 0 * logits[..., :1]


def _seen(batch: Batch, t_B: Tensor, noise: Tensor, diffusion: DiffusionSettings) -> tuple[Tensor, ...]:
    alpha = diffusion.alpha(t_B)[:, None, None, None]
    noisy = alpha * batch.image + (1 - alpha) * noise
    return noisy, t_B, batch.mask, batch.condition, batch.condition_mask


def denoising_loss(
    model: PixelDLM,
    batch: Batch,
    *,
    diffusion: DiffusionSettings,
    dtype: torch.dtype | None = None,
    reduce: Reduce = masked_mse,
) -> Tensor:
    """The loss of a batch at random times."""
    steps = diffusion.num_timesteps
    t_B = (torch.randint(steps, (len(batch.image),)) / steps) ** diffusion.time_power
    predicted = denoise(model, batch, t_B, torch.randn_like(batch.image), diffusion, dtype)
    per_noise = diffusion.per_noise(t_B)
    return reduce(per_noise.to(predicted.dtype) * predicted, per_noise * batch.image, batch.mask[..., None])


@torch.no_grad()
def evaluate(
    model: PixelDLM, held_out: Batch, *, diffusion: DiffusionSettings, dtype: torch.dtype | None = None
) -> Evaluation:
    """The loss over fixed times, and the share of tokens recovered from a moderate noise."""
    noise = evaluation_noise(held_out)
    model.eval()
    losses = []
    for time in EVALUATION_TIMES:
        t_B = _at(time, held_out)
        per_noise = diffusion.per_noise(t_B)
        predicted = denoise(model, held_out, t_B, noise, diffusion, dtype)
        losses.append(float(masked_mse(per_noise * predicted, per_noise * held_out.image, held_out.mask[..., None])))
    found = read(model, held_out, _at(RECOVERY_TIME, held_out), noise, diffusion, dtype)
    model.train()
    return Evaluation(sum(losses) / len(losses), recovered(found, held_out))


def evaluation_noise(batch: Batch) -> Tensor:
    """Always the same noise for the held-out texts."""
    return torch.randn(batch.image.shape, generator=torch.Generator().manual_seed(0))


def recovered(image: Tensor, batch: Batch) -> float:
    """The share of real pixels whose nearest character is the right one; NaN is never right."""
    found, true = image[batch.mask].float(), batch.image[batch.mask]
    nearest = torch.cdist(found.nan_to_num(), palette()).argmin(-1)
    right = (palette()[nearest] == true).all(-1) & found.isfinite().all(-1)
    return right.float().mean().item()


def _at(time: float, batch: Batch) -> Tensor:
    return torch.full((len(batch.image),), time)
