"""Rotary embedding whose frequencies are interpolated for longer windows (YaRN). The ramp between kept and interpolated frequencies runs from low to high; for one window
length of the curriculum both fall on the same dimension.
After https://github.com/pytorch/torchtitan/pull/2216 (the linear ramp adds 0.001 when min and max are equal, to avoid division by zero).
True cause: division by zero."""
import math

import torch
from torch import nn


def correction_dim(rotations, dim, base, window):
    return dim * math.log(window / (rotations * 2 * math.pi)) / (2 * math.log(base))


def ramp(low, high, size):
    return ((torch.arange(size).float() - low) / torch.tensor(float(high - low))).clamp(0, 1)


class YarnRotary(nn.Module):
    def __init__(self, dim=16, base=10000.0, trained=32, beta_fast=4.0, beta_slow=1.0):
        super().__init__()
        self.dim, self.base, self.trained, self.beta_fast, self.beta_slow = dim, base, trained, beta_fast, beta_slow

    def forward(self, length):
        inv = self.base ** (-torch.arange(0, self.dim, 2).float() / self.dim)
        if length > self.trained:
            low = max(math.floor(correction_dim(self.beta_fast, self.dim, self.base, self.trained)), 0)
            high = min(math.ceil(correction_dim(self.beta_slow * length / self.trained, self.dim, self.base, self.trained)), self.dim - 1)
            keep = 1 - ramp(low, max(high, low), self.dim // 2)
            inv = inv / (length / self.trained) * (1 - keep) + inv * keep
        angles = torch.arange(length).float()[:, None] * inv
        return angles.cos(), angles.sin()


class Block(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.rotary = YarnRotary(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        cos, sin = self.rotary(x.shape[1])
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = ((torch.cat([a * cos - b * sin, a * sin + b * cos], -1)) for a, b in (q.chunk(2, -1), k.chunk(2, -1)))
        return x + self.proj(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(19, 16), Block(), nn.Linear(16, 19))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(7)
    windows = [24, 32, 48, 64, 192, 64]
    batches = [torch.randint(0, 19, (2, n + 1), generator=g) for n in windows]

    def loss_fn(m, ids):
        return nn.functional.cross_entropy(m(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="1.rotary", phase="forward", op="aten.div", first_bad_step=4,
                           line="/ torch.tensor(float(high - low))", why="low and high are both 0 for the window of 192: 0 / 0"))
