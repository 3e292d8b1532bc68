"""The model: a diffusion transformer over patches that predicts the clean image.

    image [B, 16, 16, 3] ─► 16 patches ─┐
                                        ├─► blocks, modulated by the time ─► RMSNorm ─► pixels ─► × mask
    condition slots [B, 2, 24] ─────────┘

Patches and slots are tokens with a mask: a patch counts if it holds a real pixel, a slot if its condition is there.
Every block is AdaLN-zero: at the start it is exactly the identity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nantrap.ops import AdaLNZero, MaskedAttention, RMSNorm
from nantrap.systems.layers import SwiGLU, TimeEmbedding
from nantrap.systems.pixeldlm.data import SLOT_WIDTH


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """`model:` in the config."""

    hidden_size: int = 128
    depth: int = 2
    num_heads: int = 4
    patch_size: int = 4
    condition_slots: int = 2


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
        attention: makes the attention of a block.
        adaln: makes an adaptive norm of a block.
        counts: which patches count, from their pixels [B, L, P].
    """

    def __init__(
        self,
        settings: ModelSettings,
        *,
        image_size: int = 16,
        attention: Callable[..., nn.Module] = MaskedAttention,
        adaln: Callable[..., nn.Module] = AdaLNZero,
        counts: Callable[[Tensor], Tensor] = any_pixel,
    ) -> None:
        super().__init__()
        dim, self.patch, self.slots = settings.hidden_size, settings.patch_size, settings.condition_slots
        if image_size % self.patch:
            raise ValueError(f"image_size {image_size} is not a multiple of patch_size {self.patch}")
        self.counts = counts
        self.side = image_size // self.patch
        self.embed = nn.Linear(3 * self.patch**2, dim)
        self.embed_condition = nn.Linear(SLOT_WIDTH, dim, bias=False)
        self.time = TimeEmbedding(dim)
        self.positions: Tensor
        self.register_buffer("positions", positions_2d(self.side, dim), persistent=False)
        self.blocks = nn.ModuleList(
            Block(dim, heads=settings.num_heads, attention=attention, adaln=adaln) for _ in range(settings.depth)
        )
        self.norm = RMSNorm(dim)
        self.head = nn.Linear(dim, 3 * self.patch**2)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(
        self, noisy_BHWC: Tensor, t_B: Tensor, mask_BHW: Tensor, condition_BSC: Tensor, condition_mask_BS: Tensor
    ) -> Tensor:
        mask_BHWC = mask_BHW[..., None]
        patches = self.embed(self._to_patches(noisy_BHWC * mask_BHWC)) + self.positions
        slots = self.embed_condition(condition_BSC * condition_mask_BS[..., None])
        x_BLD = torch.cat([slots, patches], 1)
        mask_BL = torch.cat([condition_mask_BS, self.counts(self._to_patches(mask_BHWC))], 1)
        time_BD = self.time(t_B)
        for block in self.blocks:
            x_BLD = block(x_BLD, time_BD, mask_BL)
        return self._to_image(self.head(self.norm(x_BLD[:, self.slots :]))) * mask_BHWC

    def _to_patches(self, image_BHWC: Tensor) -> Tensor:
        tiles = image_BHWC.unflatten(1, (self.side, self.patch)).unflatten(3, (self.side, self.patch))
        patches_BLP: Tensor = tiles.transpose(2, 3).flatten(3).flatten(1, 2)
        return patches_BLP

    def _to_image(self, patches_BLP: Tensor) -> Tensor:
        tiles = patches_BLP.unflatten(2, (self.patch, self.patch, 3)).unflatten(1, (self.side, self.side))
        image_BHWC: Tensor = tiles.transpose(2, 3).flatten(3, 4).flatten(1, 2)
        return image_BHWC


def positions_2d(side: int, dim: int) -> Tensor:
    """[side², dim]: sines and cosines of the row in the first half, of the column in the second."""
    frequencies = torch.exp(-math.log(100.0) * torch.arange(dim // 4) / (dim // 4))
    angles = torch.arange(side)[:, None] * frequencies
    line = torch.cat([angles.sin(), angles.cos()], -1)
    rows, columns = line[:, None].expand(side, side, -1), line[None].expand(side, side, -1)
    return torch.cat([rows, columns], -1).flatten(0, 1)
