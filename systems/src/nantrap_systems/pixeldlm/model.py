"""The model: a diffusion transformer over patches that predicts the clean image.

    image [B, 16, 16, 3] ─► how likely each character is, pixel by pixel ─► embedding, convolution in reading order
                                                                              │
                                        ┌─ 16 patches ◄───────────────────────┤
    condition slots [B, 2, 24] ─────────┴─► blocks, modulated by the time     │
                                              └─► RMSNorm ─► patches back to pixels, added ─► logits of characters
                                                    ─► mean colour under softmax(logits + likelihood) ─► × mask

The clean image is a mean of the colours that characters have, weighted by what the noisy pixel says (a
Gaussian likelihood, exact) and by what the network says of its surroundings. A network that must find those colours by
itself is worse than returning its noisy input; this one begins as good as a decoder that sees one pixel alone.

Patches and slots are tokens with a mask: a patch counts if it holds a real pixel, a slot if its condition is there.
Every block is AdaLN-zero: at the start it is exactly the identity.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nantrap.ops import AdaLNZero, MaskedAttention, RMSNorm, linear_schedule
from nantrap_systems.layers import SwiGLU, TimeEmbedding
from nantrap_systems.pixeldlm.data import SLOT_WIDTH, palette
from nantrap_systems.pixeldlm.settings import ModelSettings

SMALLEST_NOISE = 0.02
"""Noise below this counts as this: at t = 0 there is none, and a likelihood would be infinitely sharp."""


def any_pixel(pixels_BLP: Tensor) -> Tensor:
    """Whether a patch counts [B, L]: it does if one of its pixels is a token."""
    return pixels_BLP.any(-1)


class Block(nn.Module):
    """Attention and SwiGLU, each behind an AdaLN-zero."""

    def __init__(
        self, dim: int, *, heads: int, attention: Callable[..., nn.Module], adaln: Callable[..., nn.Module]
    ) -> None:
        super().__init__()
        self.before_attention = adaln(dim, condition_dim=dim)
        self.attention = attention(dim, heads=heads)
        self.before_mlp = adaln(dim, condition_dim=dim)
        self.mlp = SwiGLU(dim)

    def forward(self, x_BLD: Tensor, time_BD: Tensor, mask_BL: Tensor) -> Tensor:
        h, gate = self.before_attention(x_BLD, time_BD)
        x_BLD = x_BLD + gate * self.attention(h, mask_BL)
        h, gate = self.before_mlp(x_BLD, time_BD)
        out: Tensor = x_BLD + gate * self.mlp(h)
        return out


class PixelDLM(nn.Module):
    """Predicts the clean image from a noisy one, its time, its mask and its condition.

    Args:
        settings: sizes.
        image_size: pixels a side.
        alpha: the share of the image in a noisy one, by time.
        attention: makes the attention of a block.
        adaln: makes an adaptive norm of a block.
        counts: which patches count, from their pixels [B, L, P].
        frequencies: how often each character is used [K], where its logits begin; `None` for all alike.
    """

    def __init__(
        self,
        settings: ModelSettings,
        *,
        image_size: int = 16,
        alpha: Callable[[Tensor], Tensor] = linear_schedule,
        attention: Callable[..., nn.Module] = MaskedAttention,
        adaln: Callable[..., nn.Module] = AdaLNZero,
        counts: Callable[[Tensor], Tensor] = any_pixel,
        frequencies: Tensor | None = None,
    ) -> None:
        super().__init__()
        dim, self.patch, self.slots = settings.hidden_size, settings.patch_size, settings.condition_slots
        if image_size % self.patch:
            raise ValueError(f"image_size {image_size} is not a multiple of patch_size {self.patch}")
        self.counts, self.alpha = counts, alpha
        self.side, self.width = image_size // self.patch, settings.pixel_size
        self.palette: Tensor
        self.register_buffer("palette", palette().clone(), persistent=False)
        characters = len(self.palette)
        self.prior = nn.Parameter(torch.zeros(characters) if frequencies is None else frequencies.log())
        self.embed_pixel = nn.Linear(characters, self.width)
        self.neighbours = nn.Conv1d(self.width, self.width, 9, padding=4)
        self.embed = nn.Linear(self.width * self.patch**2, dim)
        self.embed_condition = nn.Linear(SLOT_WIDTH, dim, bias=False)
        self.time = TimeEmbedding(dim)
        self.positions: Tensor
        self.register_buffer("positions", positions_2d(self.side, dim), persistent=False)
        self.blocks = nn.ModuleList(
            Block(dim, heads=settings.num_heads, attention=attention, adaln=adaln) for _ in range(settings.depth)
        )
        self.norm = RMSNorm(dim)
        self.to_pixels = nn.Linear(dim, self.width * self.patch**2)
        self.head = nn.Linear(self.width, characters)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(
        self, noisy_BHWC: Tensor, t_B: Tensor, mask_BHW: Tensor, condition_BSC: Tensor, condition_mask_BS: Tensor
    ) -> Tensor:
        logits_BHWK = self.logits(noisy_BHWC, t_B, mask_BHW, condition_BSC, condition_mask_BS)
        return (logits_BHWK.softmax(-1) @ self.palette) * mask_BHW[..., None]

    def logits(
        self, noisy_BHWC: Tensor, t_B: Tensor, mask_BHW: Tensor, condition_BSC: Tensor, condition_mask_BS: Tensor
    ) -> Tensor:
        """How likely each character is at every pixel [B, H, W, K]."""
        mask_BHWC = mask_BHW[..., None]
        evidence_BHWK = self.log_likelihood(noisy_BHWC * mask_BHWC, t_B) + self.prior
        pixels_BHWF = self._read(evidence_BHWK.softmax(-1), mask_BHWC)
        patches = self.embed(self._to_patches(pixels_BHWF)) + self.positions
        slots = self.embed_condition(condition_BSC * condition_mask_BS[..., None])
        x_BLD = torch.cat([slots, patches], 1)
        mask_BL = torch.cat([condition_mask_BS, self.counts(self._to_patches(mask_BHWC))], 1)
        time_BD = self.time(t_B)
        for block in self.blocks:
            x_BLD = block(x_BLD, time_BD, mask_BL)
        context_BHWF = self._to_image(self.to_pixels(self.norm(x_BLD[:, self.slots :])))
        logits_BHWK: Tensor = self.head(F.silu(pixels_BHWF + context_BHWF)).float() + evidence_BHWK
        return logits_BHWK

    def log_likelihood(self, noisy_BHWC: Tensor, t_B: Tensor) -> Tensor:
        """log p(noisy pixel | character) [B, H, W, K], up to a constant: a Gaussian around α·colour."""
        alpha = self.alpha(t_B)[:, None, None, None]
        spread = (1 - alpha).clamp(min=SMALLEST_NOISE)
        far = (noisy_BHWC.float()[..., None, :] - alpha[..., None] * self.palette).square().sum(-1)
        return -far / (2 * spread.square())

    def _read(self, likely_BHWK: Tensor, mask_BHWC: Tensor) -> Tensor:
        """Features of every pixel, with what is before and behind it in the text; 0 where there is no token."""
        embedded = self.embed_pixel(likely_BHWK) * mask_BHWC
        line_BFL = embedded.flatten(1, 2).transpose(1, 2)
        mixed = F.silu(self.neighbours(line_BFL)).transpose(1, 2).unflatten(1, mask_BHWC.shape[1:3])
        features_BHWF: Tensor = (embedded + mixed) * mask_BHWC
        return features_BHWF

    def _to_patches(self, image_BHWC: Tensor) -> Tensor:
        tiles = image_BHWC.unflatten(1, (self.side, self.patch)).unflatten(3, (self.side, self.patch))
        patches_BLP: Tensor = tiles.transpose(2, 3).flatten(3).flatten(1, 2)
        return patches_BLP

    def _to_image(self, patches_BLP: Tensor) -> Tensor:
        tiles = patches_BLP.unflatten(2, (self.patch, self.patch, -1)).unflatten(1, (self.side, self.side))
        image_BHWC: Tensor = tiles.transpose(2, 3).flatten(3, 4).flatten(1, 2)
        return image_BHWC


def positions_2d(side: int, dim: int) -> Tensor:
    """[side², dim]: sines and cosines of the row in the first half, of the column in the second."""
    frequencies = torch.exp(-math.log(100.0) * torch.arange(dim // 4) / (dim // 4))
    angles = torch.arange(side)[:, None] * frequencies
    line = torch.cat([angles.sin(), angles.cos()], -1)
    rows, columns = line[:, None].expand(side, side, -1), line[None].expand(side, side, -1)
    return torch.cat([rows, columns], -1).flatten(0, 1)
