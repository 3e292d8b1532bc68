"""The first stage: a small KL autoencoder, trained once and then frozen.

    map [B, 1, 64, 64] ─► encoder ─► mean and log-variance [B, 3, 16, 16] ─► sample ─► decoder ─► map

Its loss is the absolute error plus a very small Kullback-Leibler term. `first_stage` trains one and remembers it, so
that all runs with the same settings and seed share it, as they would share a file.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nantrap.ops import kl_divergence
from nantrap_systems.radiodiff.data import Maps
from nantrap_systems.radiodiff.settings import DataSettings, FirstStageSettings


class Posterior(NamedTuple):
    """A Gaussian for every latent value; the log-variance lies in [-30, 20]."""

    mean: Tensor
    logvar: Tensor

    def sample(self) -> Tensor:
        """A latent of the posterior."""
        return self.mean + torch.exp(0.5 * self.logvar) * torch.randn_like(self.mean)


class Residual(nn.Module):
    """x + conv(silu(norm(x)))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.conv(F.silu(self.norm(x)))
        return out


class AutoencoderKL(nn.Module):
    """Four times smaller in height and width, `embed_dim` channels."""

    def __init__(self, settings: FirstStageSettings) -> None:
        super().__init__()
        ch, wide = settings.ch, 2 * settings.ch
        self.encoder = nn.Sequential(
            nn.Conv2d(1, ch, 3, stride=2, padding=1),
            Residual(ch),
            nn.Conv2d(ch, wide, 3, stride=2, padding=1),
            Residual(wide),
            nn.GroupNorm(4, wide),
            nn.SiLU(),
            nn.Conv2d(wide, 2 * settings.embed_dim, 3, padding=1),
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(settings.embed_dim, wide, 3, padding=1),
            Residual(wide),
            nn.Conv2d(wide, 4 * ch, 3, padding=1),
            nn.PixelShuffle(2),
            Residual(ch),
            nn.GroupNorm(4, ch),
            nn.SiLU(),
            nn.Conv2d(ch, 4, 3, padding=1),
            nn.PixelShuffle(2),
        )

    def encode(self, image: Tensor) -> Posterior:
        """The posterior of a map."""
        mean, logvar = self.encoder(image).chunk(2, 1)
        return Posterior(mean, logvar.clamp(-30.0, 20.0))

    def decode(self, latent: Tensor) -> Tensor:
        """The map of a latent."""
        image: Tensor = self.decoder(latent)
        return image

    def forward(self, image: Tensor) -> tuple[Tensor, Posterior]:
        posterior = self.encode(image)
        return self.decode(posterior.sample()), posterior


def autoencoder_loss(model: AutoencoderKL, image: Tensor, *, kl_weight: float) -> dict[str, Tensor]:
    """The terms of the first stage."""
    decoded, posterior = model(image)
    kl = kl_divergence(posterior.mean, posterior.logvar, reduction="sum") / len(image)
    return {"reconstruction": (decoded - image).abs().mean(), "kl": kl_weight * kl}


@functools.cache
def first_stage(settings: FirstStageSettings, data: DataSettings, seed: int) -> AutoencoderKL:
    """A trained first stage. Leaves the random stream alone."""
    maps = Maps(data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoencoderKL(settings)
        optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr)
        steps = settings.train_num_steps
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.lr, total_steps=steps + 1)
        for step in range(steps):
            batch = maps.batch(step, size=8, seed=seed)
            terms = autoencoder_loss(model, batch.image, kl_weight=settings.kl_weight)
            torch.stack(list(terms.values())).sum().backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return model.eval().requires_grad_(False)
