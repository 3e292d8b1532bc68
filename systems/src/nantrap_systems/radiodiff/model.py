"""The model: a frozen first stage, and a U-Net that denoises its latents by decoupled diffusion.

With C = -x₀ the latent x₀ fades out along a straight line while noise comes in: x_t = x₀ + C·t + √t·ε, t in [ε, 1].
The model is called with a batch and gives the loss by terms, as a `DistributedDataParallel` model must be.

The denoiser: a U-Net that gets the condition at every level, with two decoders.

    x_t ─► conv ─► level 16² ─► level 8² ─► middle ─► FFT filter 1 ─► decoder 1 ─► u₁
                      ▲            ▲           └────► FFT filter 2 ─► decoder 2 ─► u₂
    condition ─► features 16²     8²

A level is a residual block, scaled and shifted by the time, and a relation block: windows of the image attend to the
same windows of the condition. What comes out is preconditioned:

    Ĉ = (1-t)·x_t + t/√(t²+1)·u₁          ε̂ = √t·x_t + √(1-t)/√(t²+1)·u₂
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nantrap.ops import masked_attention, safe_divide, safe_log, safe_sqrt
from nantrap_systems.radiodiff.autoencoder import AutoencoderKL
from nantrap_systems.radiodiff.data import Batch
from nantrap_systems.radiodiff.settings import ModelSettings, UNetSettings

# ---- the denoiser

DIM_MULTS = (1, 2)
WINDOW_SIZES = (8, 8)
"""Of the levels: channels by `dim`, and cells a side of an attention window."""

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From query, key and value [..., L, d] to what was attended to."""


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(q·kᵀ/√d)·v, in float32 whatever the precision around it."""
    with torch.autocast("cpu", enabled=False):
        return masked_attention(query.float(), key.float(), value.float())


def log_time(t_B: Tensor) -> Tensor:
    """log(t)/4, finite at t = 0."""
    return safe_log(t_B) / 4


class GaussianFourierTime(nn.Module):
    """Sines and cosines of log(t)/4 at random frequencies, then two layers."""

    def __init__(self, dim: int, *, scale: float, log_time: Callable[[Tensor], Tensor] = log_time) -> None:
        super().__init__()
        self.log_time = log_time
        self.frequencies: Tensor
        self.register_buffer("frequencies", torch.randn(dim // 2) * scale)
        self.layers = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, t_B: Tensor) -> Tensor:
        angles = self.log_time(t_B)[:, None] * self.frequencies * (2 * torch.pi)
        out: Tensor = self.layers(torch.cat([angles.sin(), angles.cos()], -1))
        return out


class ResidualBlock(nn.Module):
    """Two convolutions behind GroupNorm and SiLU; the time scales and shifts between them."""

    def __init__(self, dim_in: int, dim: int, *, time_dim: int) -> None:
        super().__init__()
        self.time = nn.Linear(time_dim, 2 * dim)
        self.conv1 = nn.Conv2d(dim_in, dim, 3, padding=1)
        self.norm1 = nn.GroupNorm(8, dim)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1)
        self.norm2 = nn.GroupNorm(8, dim)
        self.skip = nn.Conv2d(dim_in, dim, 1) if dim_in != dim else nn.Identity()

    def forward(self, x: Tensor, time_BD: Tensor) -> Tensor:
        scale, shift = self.time(F.silu(time_BD))[:, :, None, None].chunk(2, 1)
        h = F.silu(self.norm1(self.conv1(x)) * (1 + scale) + shift)
        out: Tensor = F.silu(self.norm2(self.conv2(h))) + self.skip(x)
        return out


class WindowAttention(nn.Module):
    """Cross-attention inside windows: an image window asks the same window of the condition."""

    def __init__(self, dim: int, *, heads: int, window: int, gain: float, attend: Attend) -> None:
        super().__init__()
        self.heads, self.window, self.attend = heads, window, attend
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)
        with torch.no_grad():
            for layer in (self.query, self.key):
                layer.weight *= gain

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Attention from the image to the condition inside each window."""
        height, width = x.shape[-2:]
        tokens, others = self._windows(x), self._windows(condition)
        q, k, v = (self._heads(part) for part in (self.query(tokens), self.key(others), self.value(others)))
        mixed = self.out(self.attend(q, k, v).transpose(-2, -3).flatten(-2))
        tiles = mixed.unflatten(1, (self.window, self.window)).unflatten(
            0, (-1, height // self.window, width // self.window)
        )
        image: Tensor = tiles.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)
        return image

    def _windows(self, x: Tensor) -> Tensor:
        """[B, C, H, W] as [B·windows, L, C]."""
        tiles = x.unflatten(3, (-1, self.window)).unflatten(2, (-1, self.window))
        tokens: Tensor = tiles.permute(0, 2, 4, 3, 5, 1).flatten(3, 4).flatten(0, 2)
        return tokens

    def _heads(self, tokens: Tensor) -> Tensor:
        """[N, L, C] as [N, heads, L, C/heads]."""
        split: Tensor = tokens.unflatten(-1, (self.heads, -1)).transpose(-2, -3)
        return split


class RelationBlock(nn.Module):
    """Both inputs through a 1x1 convolution and BatchNorm, window attention, a feed-forward."""

    def __init__(self, dim: int, *, heads: int, window: int, gain: float, attend: Attend) -> None:
        super().__init__()
        self.input = nn.Sequential(nn.Conv2d(dim, dim, 1), nn.BatchNorm2d(dim, eps=1e-3, momentum=0.1))
        self.condition = nn.Sequential(nn.Conv2d(dim, dim, 1), nn.BatchNorm2d(dim, eps=1e-3, momentum=0.1))
        self.attention = WindowAttention(dim, heads=heads, window=window, gain=gain, attend=attend)
        self.mlp = nn.Sequential(
            nn.GroupNorm(1, dim), nn.Conv2d(dim, 2 * dim, 1), nn.GELU(), nn.Conv2d(2 * dim, dim, 1)
        )

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        asked = self.condition(condition)
        x = x + asked + self.attention(self.input(x), asked)
        out: Tensor = x + self.mlp(x)
        return out


class FFTFilter(nn.Module):
    """A learned complex weight for every frequency, always in float32."""

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, dim)
        self.weight = nn.Parameter(0.02 * torch.randn(dim, size, size // 2 + 1, 2))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            spectrum = torch.fft.rfft2(self.norm(x.float()), norm="ortho")
            kept = spectrum * torch.view_as_complex(self.weight)
            out: Tensor = x + torch.fft.irfft2(kept, s=x.shape[-2:], norm="ortho")
            return out


class ConditionEncoder(nn.Module):
    """Feature maps of the condition, one for every level of the U-Net."""

    def __init__(self, dims: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, dims[0], 5, stride=2, padding=2),
            nn.SiLU(),
            nn.Conv2d(dims[0], dims[0], 3, stride=2, padding=1),
        )
        self.levels = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(8, before), nn.SiLU(), nn.Conv2d(before, after, 3, stride=2, padding=1))
            for before, after in itertools.pairwise(dims)
        )

    def forward(self, condition: Tensor) -> list[Tensor]:
        features = [self.stem(condition)]
        for level in self.levels:
            features.append(level(features[-1]))
        return features


class Decoder(nn.Module):
    """From the middle up to the first level, with what the levels on the way down gave."""

    def __init__(self, dims: tuple[int, ...], *, channels: int, time_dim: int) -> None:
        super().__init__()
        below = (*dims[1:], dims[-1])
        self.blocks = nn.ModuleList(
            ResidualBlock(deeper + dim, dim, time_dim=time_dim) for dim, deeper in zip(dims, below, strict=True)
        )
        self.out = nn.Conv2d(dims[0], channels, 1)

    def forward(self, x: Tensor, skips: list[Tensor], time_BD: Tensor) -> Tensor:
        for block, skip in zip(reversed(self.blocks), reversed(skips), strict=True):
            if x.shape[-1] != skip.shape[-1]:
                x = F.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([x, skip], 1), time_BD)
        out: Tensor = self.out(x)
        return out


class UNet(nn.Module):
    """Predicts C and ε of a noisy latent [B, C, S, S], from its time and its condition [B, 3, 4·S, 4·S].

    Args:
        settings: sizes.
        channels: of the latent.
        size: S.
        attend: the attention inside the windows.
        log_time: of the time embedding.
    """

    def __init__(
        self,
        settings: UNetSettings,
        *,
        channels: int,
        size: int,
        attend: Attend = attend,
        log_time: Callable[[Tensor], Tensor] = log_time,
    ) -> None:
        super().__init__()
        self.channels = channels
        dims = tuple(settings.dim * mult for mult in DIM_MULTS)
        time_dim = 2 * settings.dim
        windows = [min(window, size >> level) for level, window in enumerate(WINDOW_SIZES)]
        self.time = GaussianFourierTime(time_dim, scale=settings.fourier_scale, log_time=log_time)
        self.condition = ConditionEncoder(dims)
        self.input = nn.Conv2d(channels + dims[0], dims[0], 3, padding=1)
        self.blocks = nn.ModuleList(ResidualBlock(dim, dim, time_dim=time_dim) for dim in dims)
        self.relations = nn.ModuleList(
            RelationBlock(dim, heads=settings.heads, window=window, gain=settings.query_key_gain, attend=attend)
            for dim, window in zip(dims, windows, strict=True)
        )
        self.downs = nn.ModuleList(
            nn.Conv2d(before, after, 3, stride=2, padding=1) for before, after in itertools.pairwise(dims)
        )
        self.middle = ResidualBlock(dims[-1], dims[-1], time_dim=time_dim)
        lowest = size // 2 ** (len(dims) - 1)
        self.filters = nn.ModuleList(FFTFilter(dims[-1], lowest) for _ in range(2))
        self.decoders = nn.ModuleList(Decoder(dims, channels=channels, time_dim=time_dim) for _ in range(2))

    def forward(self, noisy: Tensor, t_B: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """The two predictions of the decoupled diffusion, preconditioned by the time."""
        features = self.condition(condition)
        time_BD = self.time(t_B)
        x = self.input(torch.cat([noisy, features[0]], 1))
        skips = []
        for level, (block, relation) in enumerate(zip(self.blocks, self.relations, strict=True)):
            x = relation(block(x, time_BD), features[level])
            skips.append(x)
            if level < len(self.downs):
                x = self.downs[level](x)
        x = self.middle(x, time_BD)
        u1, u2 = (
            decoder(filtered(x), skips, time_BD) for filtered, decoder in zip(self.filters, self.decoders, strict=True)
        )
        return preconditioned(noisy, t_B, u1, u2)


def preconditioned(noisy: Tensor, t_B: Tensor, u1: Tensor, u2: Tensor) -> tuple[Tensor, Tensor]:
    """Ĉ and ε̂ of what the decoders gave."""
    t = t_B[:, None, None, None]
    length = torch.sqrt(t**2 + 1)
    return (1 - t) * noisy + t / length * u1, safe_sqrt(t) * noisy + safe_sqrt(1 - t) / length * u2


# ---- the diffusion

LossTerms = Callable[["Latents", Tensor, Tensor], dict[str, Tensor]]
"""From the latents at their times, Ĉ and ε̂ to the terms of the loss."""


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
        terms: LossTerms,
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
