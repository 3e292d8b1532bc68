"""The loss: noise an image, predict the clean one, compare where there are tokens.

    x_t = α·x + (1-α)·ε,  α = 1 - t/T or a cosine        loss = Σ m·(x̂ - x)² / Σ m

and the evaluation: the same on held-out texts at fixed times, and the share of tokens that come back right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nantrap.errors import UsageError
from nantrap.ops import cosine_schedule, linear_schedule, masked_mse, tokens_to_colour
from nantrap.systems.pixeldlm.data import Batch, characters_to_tokens
from nantrap.systems.pixeldlm.model import PixelDLM
from nantrap.systems.precision import autocast
from nantrap.systems.system import Evaluation

Reduce = Callable[[Tensor, Tensor, Tensor], Tensor]
"""The loss of a prediction [B, H, W, 3], its target, and the mask [B, H, W, 1]."""

EVALUATION_TIMES = (0.1, 0.3, 0.5, 0.7, 0.9)
RECOVERY_TIME = 0.1
"""A moderate noise level: α = 0.9 blurs a byte by 14 of its 256 steps."""


@dataclass(frozen=True, slots=True)
class DiffusionSettings:
    """`diffusion:` in the config."""

    noise_schedule: str = "linear"
    num_timesteps: int = 1000

    def __post_init__(self) -> None:
        if self.noise_schedule not in ("linear", "cosine"):
            raise UsageError(f"diffusion.noise_schedule is {self.noise_schedule!r}: choose linear or cosine")

    def alpha(self, t: Tensor) -> Tensor:
        """The share of the image at time t in [0, 1]."""
        return linear_schedule(t) if self.noise_schedule == "linear" else cosine_schedule(t)


def denoise(
    model: PixelDLM, batch: Batch, t_B: Tensor, noise: Tensor, diffusion: DiffusionSettings, dtype: torch.dtype | None
) -> Tensor:
    """The model's clean image of a batch at these times, under autocast if there is a dtype."""
    alpha = diffusion.alpha(t_B)[:, None, None, None]
    noisy = alpha * batch.image + (1 - alpha) * noise
    with autocast(dtype):
        clean: Tensor = model(noisy, t_B, batch.mask, batch.condition, batch.condition_mask)
    return clean


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
    t_B = torch.randint(steps, (len(batch.image),)) / steps
    predicted = denoise(model, batch, t_B, torch.randn_like(batch.image), diffusion, dtype)
    return reduce(predicted, batch.image, batch.mask[..., None])


@torch.no_grad()
def evaluate(
    model: PixelDLM, held_out: Batch, *, diffusion: DiffusionSettings, dtype: torch.dtype | None = None
) -> Evaluation:
    """The loss over fixed times, and the share of tokens recovered from a moderate noise."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(held_out.image.shape, generator=generator)
    model.eval()
    losses = []
    for time in EVALUATION_TIMES:
        predicted = denoise(model, held_out, _at(time, held_out), noise, diffusion, dtype)
        losses.append(float(masked_mse(predicted, held_out.image, held_out.mask[..., None])))
    predicted = denoise(model, held_out, _at(RECOVERY_TIME, held_out), noise, diffusion, dtype)
    model.train()
    return Evaluation(sum(losses) / len(losses), recovered(predicted, held_out))


def recovered(image: Tensor, batch: Batch) -> float:
    """The share of real pixels whose nearest character is the right one; NaN is never right."""
    palette = tokens_to_colour(characters_to_tokens("".join(map(chr, range(128)))))
    found, true = image[batch.mask].float(), batch.image[batch.mask]
    nearest = torch.cdist(found.nan_to_num(), palette).argmin(-1)
    right = (palette[nearest] == true).all(-1) & found.isfinite().all(-1)
    return right.float().mean().item()


def _at(time: float, batch: Batch) -> Tensor:
    return torch.full((len(batch.image),), time)
