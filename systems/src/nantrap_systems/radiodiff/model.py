"""The model: a frozen first stage, and a U-Net that denoises its latents by decoupled diffusion.

With C = -x₀ the latent x₀ fades out along a straight line while noise comes in: x_t = x₀ + C·t + √t·ε, t in [ε, 1].
The model is called with a batch and gives the loss by terms, as a `DistributedDataParallel` model must be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nantrap.ops import safe_divide, safe_sqrt
from nantrap_systems.radiodiff.autoencoder import AutoencoderKL
from nantrap_systems.radiodiff.data import Batch
from nantrap_systems.radiodiff.unet import UNet

Terms = Callable[["Latents", Tensor, Tensor], dict[str, Tensor]]
"""From the latents at their times, Ĉ and ε̂ to the terms of the loss."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """`model:` in the config. With `scale_by_std` the scale is 1/std of the first batch, else `scale_factor`.

    With `evaluate_samples` maps are judged that are sampled from noise, in `sampling_timesteps` steps.
    """

    sampling_timesteps: int = 1
    evaluate_samples: bool = False
    eps: float = 1e-4
    scale_factor: float = 0.3
    scale_by_std: bool = True
    loss_vlb_weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Latents:
    """Latents x₀, their times t, the noise ε, and what becomes of them: x_t = x₀ + C·t + √t·ε."""

    start: Tensor
    t_B: Tensor
    noise: Tensor

    @property
    def drift(self) -> Tensor:
        """C = -x₀."""
        return -self.start

    @property
    def noisy(self) -> Tensor:
        """x_t."""
        t = self.t_B[:, None, None, None]
        return self.start + self.drift * t + safe_sqrt(t) * self.noise


def uniform_times(count: int, eps: float) -> Tensor:
    """Times of a batch, in [eps, 1]."""
    return eps + (1 - eps) * torch.rand(count)


def one_over_std(latent: Tensor) -> Tensor:
    """The scale that gives latents a spread of 1; 1 for latents without any spread, which tell nothing."""
    std = latent.float().std()
    return torch.where(std > 0, safe_divide(torch.ones_like(std), std), 1.0)


def time_steps(count: int, eps: float) -> list[float]:
    """The steps of a sampler from t = 1 down to 0; the last one is eps."""
    step = 1 / count
    if step <= eps:
        return [step] * count
    return [step] * (count - 1) + [step - eps, eps]


class RadioDiff(nn.Module):
    """Latent diffusion of radio maps.

    Args:
        settings: of the diffusion.
        first_stage: trained and frozen.
        unet: the denoiser.
        terms: the loss.
        times: draws the times of a batch.
        scale: the scale of the first batch's latents.
    """

    def __init__(
        self,
        settings: ModelSettings,
        *,
        first_stage: AutoencoderKL,
        unet: UNet,
        terms: Terms,
        times: Callable[[int, float], Tensor] = uniform_times,
        scale: Callable[[Tensor], Tensor] = one_over_std,
    ) -> None:
        super().__init__()
        self.settings, self.terms, self.times, self.scale = settings, terms, times, scale
        self.first_stage, self.unet = first_stage, unet
        self.scale_factor: Tensor
        self.register_buffer("scale_factor", torch.tensor(0.0 if settings.scale_by_std else settings.scale_factor))

    def train(self, mode: bool = True) -> RadioDiff:
        """The first stage is not changed."""
        super().train(mode)
        self.first_stage.eval()
        return self

    @torch.no_grad()
    def encode(self, batch: Batch) -> Tensor:
        """The scaled latents of a batch. The first batch of a run decides the scale of the whole run."""
        latent = self.first_stage.encode(batch.image).sample()
        if self.scale_factor == 0:
            self.scale_factor.copy_(self.scale(latent))
        return latent * self.scale_factor

    @property
    def decided_scale(self) -> Tensor:
        """The scale, or 1 as long as no batch has decided it."""
        return torch.where(self.scale_factor == 0, 1.0, self.scale_factor)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        return self.training_step(batch)

    def training_step(self, batch: Batch) -> dict[str, Tensor]:
        """The loss of a batch at random times, by terms."""
        start = self.encode(batch)
        t_B = self.times(len(start), self.settings.eps)
        latents = Latents(start, t_B, torch.randn_like(start))
        drift, noise = self.unet(latents.noisy, t_B, batch.condition)
        return self.terms(latents, drift, noise)

    @torch.no_grad()
    def sample(
        self,
        condition: Tensor,
        *,
        generator: torch.Generator,
        steps: Callable[[int, float], list[float]] = time_steps,
    ) -> Tensor:
        """Maps [B, 1, S, S] of these conditions, from noise."""
        side = condition.shape[-1] // 4
        count, channels = len(condition), self.unet.channels
        x = torch.randn(count, channels, side, side, generator=generator)
        now = 1.0
        schedule = steps(self.settings.sampling_timesteps, self.settings.eps)
        for number, step in enumerate(schedule):
            step = now if number == len(schedule) - 1 else step
            drift, noise = self.unet(x, torch.full((count,), now), condition)
            spread = torch.tensor(step * (now - step) / now).sqrt()
            x = x - drift * step - step / now**0.5 * noise + spread * torch.randn(x.shape, generator=generator)
            now -= step
        return self.first_stage.decode(x.float() / self.decided_scale)
