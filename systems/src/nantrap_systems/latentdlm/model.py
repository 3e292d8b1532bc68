"""The model: a transformer over text tokens and one latent token, with separate weights for each of the two.

    tokens [B, L]  ─► embedding + positions ─┐                                  ┌─► RMSNorm ─► logits [B, L, 257]
                                             ├─► blocks, modulated by the times ┤
    latent [B, 32] ─► one token ─────────────┘                                  └─► RMSNorm ─► latent [B, 32]

Text and latent each have a time, since either may be clean while the other is noise. They meet in the attention only:
norms, projections and feed-forwards are apart. Every block is AdaLN-zero: at the start it is exactly the identity.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nantrap.ops import AdaLNZero, RMSNorm, masked_attention
from nantrap_systems.latentdlm.data import UNCONDITIONAL, VOCABULARY
from nantrap_systems.latentdlm.settings import DataSettings, ModelSettings
from nantrap_systems.layers import SwiGLU, TimeEmbedding


class JointAttention(nn.Module):
    """Attention over the tokens of both modalities, each projected by its own weights."""

    def __init__(self, dim: int, *, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv_text = nn.Linear(dim, 3 * dim)
        self.qkv_latent = nn.Linear(dim, 3 * dim)
        self.out_text = nn.Linear(dim, dim)
        self.out_latent = nn.Linear(dim, dim)

    def forward(self, text_BLD: Tensor, latent_BLD: Tensor, mask_BQK: Tensor) -> tuple[Tensor, Tensor]:
        joint = torch.cat([self.qkv_text(text_BLD), self.qkv_latent(latent_BLD)], 1)
        q, k, v = joint.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = self.attend(q, k, v, mask_BQK[:, None]).transpose(1, 2).flatten(-2)
        length = text_BLD.shape[1]
        return self.out_text(mixed[:, :length]), self.out_latent(mixed[:, length:])

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """The mixed values [B, H, L, d]; a query without a key gets 0."""
        return masked_attention(q, k, v, mask)


class LearnedSchedule(nn.Module):
    """ᾱ = exp(-rate·t), with a rate that is trained like every other weight."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(6.0))

    def forward(self, t: Tensor) -> Tensor:
        return torch.exp(-self.rate * t)


class Block(nn.Module):
    """Joint attention, then a SwiGLU for each modality, every one behind its AdaLN-zero."""

    def __init__(self, dim: int, *, heads: int, attention: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.text_before_attention = AdaLNZero(dim, condition_dim=dim)
        self.latent_before_attention = AdaLNZero(dim, condition_dim=dim)
        self.attention = attention(dim, heads=heads)
        self.text_before_mlp = AdaLNZero(dim, condition_dim=dim)
        self.latent_before_mlp = AdaLNZero(dim, condition_dim=dim)
        self.text_mlp = SwiGLU(dim)
        self.latent_mlp = SwiGLU(dim)

    def forward(
        self, text_BLD: Tensor, latent_BLD: Tensor, times_BD: Tensor, mask_BQK: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Attention over text and latent together, then an MLP for each, all modulated by the times."""
        text, text_gate = self.text_before_attention(text_BLD, times_BD)
        latent, latent_gate = self.latent_before_attention(latent_BLD, times_BD)
        text, latent = self.attention(text, latent, mask_BQK)
        text_BLD, latent_BLD = text_BLD + text_gate * text, latent_BLD + latent_gate * latent
        text, text_gate = self.text_before_mlp(text_BLD, times_BD)
        latent, latent_gate = self.latent_before_mlp(latent_BLD, times_BD)
        return text_BLD + text_gate * self.text_mlp(text), latent_BLD + latent_gate * self.latent_mlp(latent)


class LatentDLM(nn.Module):
    """Guesses masked bytes and the noise of a latent, together.

    Args:
        settings: sizes.
        data: the length of a text and the size of its latent.
        attention: makes the attention of a block.
        schedule: makes the schedule of the latent's noise, if it is learned.
    """

    def __init__(
        self,
        settings: ModelSettings,
        data: DataSettings,
        *,
        attention: Callable[..., nn.Module] = JointAttention,
        schedule: Callable[[], nn.Module] = LearnedSchedule,
    ) -> None:
        super().__init__()
        dim = settings.hidden_size
        if dim % settings.num_heads:
            raise ValueError(f"hidden_size {dim} is not a multiple of num_heads {settings.num_heads}")
        self.embed_text = nn.Embedding(VOCABULARY, dim)
        self.neighbours = nn.Conv1d(dim, dim, 5, padding=2)
        self.positions = nn.Parameter(0.02 * torch.randn(data.max_length, dim))
        self.embed_latent = nn.Linear(data.latent_dim, dim)
        self.text_time = TimeEmbedding(dim)
        self.latent_time = TimeEmbedding(dim)
        self.blocks = nn.ModuleList(
            Block(dim, heads=settings.num_heads, attention=attention) for _ in range(settings.depth)
        )
        self.text_norm = RMSNorm(dim)
        self.latent_norm = RMSNorm(dim)
        self.text_head = nn.Linear(dim, VOCABULARY)
        self.latent_head = nn.Linear(dim, data.latent_dim)
        nn.init.zeros_(self.latent_head.weight)
        nn.init.zeros_(self.latent_head.bias)
        self.schedule = schedule() if settings.learned_schedule else None

    def forward(
        self, tokens_BL: Tensor, latent_BZ: Tensor, text_t_B: Tensor, latent_t_B: Tensor, mask_BQK: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The logits of the text, and the predicted latent."""
        text_BLD = self.neighbours(self.embed_text(tokens_BL).transpose(1, 2)).transpose(1, 2) + self.positions
        latent_BLD = self.embed_latent(latent_BZ)[:, None]
        times_BD = self.text_time(text_t_B) + self.latent_time(latent_t_B)
        for block in self.blocks:
            text_BLD, latent_BLD = block(text_BLD, latent_BLD, times_BD, mask_BQK)
        logits: Tensor = self.text_head(self.text_norm(text_BLD))
        predicted: Tensor = self.latent_head(self.latent_norm(latent_BLD[:, 0]))
        return logits, predicted


def joint_mask(attention_mask_BL: Tensor, mode_B: Tensor) -> Tensor:
    """Who sees whom [B, L+1, L+1], the latent last: real tokens are seen, and in the unconditional mode, text and
    latent do not see each other."""
    batch, length = attention_mask_BL.shape
    keys = torch.cat([attention_mask_BL, attention_mask_BL.new_ones(batch, 1)], 1)
    is_latent = torch.arange(length + 1, device=keys.device) == length
    same = is_latent[:, None] == is_latent[None, :]
    return keys[:, None, :] & (same | (mode_B != UNCONDITIONAL)[:, None, None])
