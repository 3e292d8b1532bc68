"""Layers that more than one system has: a gated feed-forward and an embedding of the time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SwiGLU(nn.Module):
    """W₂(SiLU(W₁x) · W₃x)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gate_and_value = nn.Linear(dim, 2 * 2 * dim)
        self.out = nn.Linear(2 * dim, dim)

    def forward(self, x_BLD: Tensor) -> Tensor:
        gate, value = self.gate_and_value(x_BLD).chunk(2, -1)
        out: Tensor = self.out(F.silu(gate) * value)
        return out


class TimeEmbedding(nn.Module):
    """t in [0, 1] as sines and cosines, then two layers."""

    def __init__(self, dim: int, *, frequencies: int = 32) -> None:
        super().__init__()
        self.frequencies: Tensor
        self.register_buffer("frequencies", torch.logspace(0, 3, frequencies), persistent=False)
        self.layers = nn.Sequential(nn.Linear(2 * frequencies, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, t_B: Tensor) -> Tensor:
        angles = t_B[:, None] * self.frequencies
        out: Tensor = self.layers(torch.cat([angles.sin(), angles.cos()], -1))
        return out
