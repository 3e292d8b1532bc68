"""Programs against the advice: what is offered near the guilty line must hold there, in each precision."""

from __future__ import annotations

import textwrap

_START = """
import math
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
draw = torch.Generator().manual_seed(1)
dtype = torch.{dtype}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))

model = Net().to(dtype)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batches = [torch.randn(6, 4, generator=draw).to(dtype) for _ in range(3)]
bad = batches[2]
"""

_HALF = ("bfloat16", "float16")
_ALL = (*_HALF, "float32", "float64")

_BODIES: dict[str, tuple[tuple[str, ...], str]] = {
    "log of one minus a sigmoid": (
        _ALL,
        """
        def loss_fn(x):
            p = torch.sigmoid(model(x) * (400 if x is bad else 1))
            return -torch.log(1 - p).mean()
        """,
    ),
    "log of one minus a clamped sigmoid": (
        _ALL,
        """
        def loss_fn(x):
            p = torch.sigmoid(model(x) * (400 if x is bad else 1)).clamp(1e-6, 1 - 1e-6)
            return -torch.log(1 - p).mean()
        """,
    ),
    "log1p of minus a sigmoid": (
        _ALL,
        """
        def loss_fn(x):
            z = model(x) * (400 if x is bad else 1)
            return -torch.log1p(-torch.sigmoid(z)).mean()
        """,
    ),
    "a batch over its deviation": (
        _ALL,
        """
        batches[2] = bad = bad[:1]

        def loss_fn(x):
            a = model(x)[:, 0]
            return ((a - a.mean()) / a.std() * a).sum() if x is bad else a.square().mean()
        """,
    ),
    "one frame over its deviation": (
        _ALL,
        """
        def loss_fn(x):
            y = model(x)
            frames = y[:, :1] if x is bad else y
            return ((y - frames.mean(1, keepdim=True)) / frames.std(1, keepdim=True) * y).sum()
        """,
    ),
    "a deviation of one, plus an eps": (
        _ALL,
        """
        batches[2] = bad = bad[:1]

        def loss_fn(x):
            a = model(x)[:, 0]
            return ((a - a.mean()) / (a.std() + 1e-4) * a).sum() if x is bad else a.square().mean()
        """,
    ),
    "two roots in a line": (
        _ALL,
        """
        def loss_fn(x):
            y = model(x) * (0 if x is bad else 1)
            return (y.abs().sqrt() + y.square().sum(-1, keepdim=True).sqrt()).mean()
        """,
    ),
    "a root in place": (
        _ALL,
        """
        def loss_fn(x):
            y = model(x).square() * (0 if x is bad else 1)
            y = y + 0
            y.sqrt_()
            return y.mean()
        """,
    ),
    "a root inside a root": (
        _ALL,
        """
        def loss_fn(x):
            y = model(x) * (0 if x is bad else 1)
            return (y.square().sum(-1).sqrt() * 2).sqrt().mean()
        """,
    ),
    "a quotient in place": (
        _ALL,
        """
        def loss_fn(x):
            y, n = model(x), x.abs().sum(-1, keepdim=True) * (0 if x is bad else 1)
            y = y * 1
            y /= n
            return y.square().mean()
        """,
    ),
    "a softmax module over masked rows": (
        _ALL,
        """
        class Masked(nn.Module):
            def __init__(self):
                super().__init__()
                self.softmax = nn.Softmax(dim=-1)
            def forward(self, scores, mask):
                return self.softmax(scores.masked_fill(mask, -math.inf))

        masked = Masked()

        def loss_fn(x):
            mask = torch.zeros(6, 3, dtype=torch.bool)
            mask[1] = x is bad
            return masked(model(x), mask).square().mean()
        """,
    ),
    "a quotient and then its logarithm": (
        _ALL,
        """
        def loss_fn(x):
            y = model(x).abs()
            n = x.abs().sum(-1, keepdim=True) * (0 if x is bad else 1)
            share = y / n
            return torch.log(share).mean()
        """,
    ),
    "a norm with an eps in half": (
        _HALF,
        """
        def loss_fn(x):
            y = model(x) * (0 if x is bad else 1)
            return (y / (y.norm(dim=-1, keepdim=True) + 1e-8)).square().mean()
        """,
    ),
    "a quotient with an eps in half": (
        _HALF,
        """
        def loss_fn(x):
            y = model(x)
            n = x.abs().sum(-1, keepdim=True) * (0 if x is bad else 1)
            return (y / (n + 1e-8)).square().mean()
        """,
    ),
    "rsqrt with an eps in half": (
        _HALF,
        """
        def loss_fn(x):
            y = model(x)
            n = x.square().mean(-1, keepdim=True) * (0 if x is bad else 1)
            return (y * torch.rsqrt(n + 1e-9)).mean()
        """,
    ),
    "an exponential that is divided by its sum": (
        _ALL,
        """
        def loss_fn(x):
            e = torch.exp(model(x) * (3000 if x is bad else 1))
            return (e / e.sum(-1, keepdim=True)).square().mean()
        """,
    ),
    "an exponential and its square": (
        _ALL,
        """
        def loss_fn(x):
            s = model(x) * (3000 if x is bad else 1)
            return torch.exp(s).square().mean()
        """,
    ),
    "a softplus by hand": (
        _ALL,
        """
        def loss_fn(x):
            s = model(x) * (3000 if x is bad else 1)
            e = torch.exp(s)
            return torch.log(1 + e).mean()
        """,
    ),
    "the logarithm of a softmax": (
        _ALL,
        """
        def loss_fn(x):
            p = F.softmax(model(x) * (3000 if x is bad else 1), dim=-1)
            return -torch.log(p).mean()
        """,
    ),
    "a where after a logarithm": (
        _ALL,
        """
        def loss_fn(x):
            y = model(x).abs() * (0 if x is bad else 1)
            return torch.where(y > 0, y.log(), 0 * y).mean()
        """,
    ),
    "a power next to zero": (
        _ALL,
        """
        def loss_fn(x):
            y = model(x).abs() * (0 if x is bad else 1)
            return (y ** 0.3).mean()
        """,
    ),
    "the root of a negative variance": (
        _ALL,
        """
        def loss_fn(x):
            y = model(x)
            v = y.square().mean() - (1.5 if x is bad else 0) * y.square().mean()
            return v.sqrt()
        """,
    ),
    "acos at its end": (
        _ALL,
        """
        def loss_fn(x):
            y = model(x)
            c = torch.cos(y * (0 if x is bad else 0.1) + (0 if x is bad else 0.2))
            return torch.acos(c).mean()
        """,
    ),
    "a sum in half": (
        ("float16",),
        """
        def loss_fn(x):
            y = model(x) * (300 if x is bad else 1)
            return (y.square() * 10).sum()
        """,
    ),
    "a product in half": (
        ("float16",),
        """
        def loss_fn(x):
            y = model(x) * (3000 if x is bad else 1)
            z = y * 100
            return torch.tanh(z).mean()
        """,
    ),
    "a mean over a mask that selects nothing": (
        _ALL,
        """
        def loss_fn(x):
            y, mask = model(x), (x[:, :1] > (99 if x is bad else -99)).to(dtype)
            return (y * mask).sum() / mask.sum()
        """,
    ),
    "a loss in which every label is ignored": (
        _ALL,
        """
        def loss_fn(x):
            y = torch.full((6,), -100 if x is bad else 1)
            return F.cross_entropy(model(x), y, label_smoothing=0.1)
        """,
    ),
    "the entropy of a one-hot": (
        _ALL,
        """
        def loss_fn(x):
            p = F.softmax(model(x) * (3000 if x is bad else 1), dim=-1)
            return -(p * p.log()).sum(-1).mean()
        """,
    ),
}

ATTACKS = {
    f"{name}, {dtype}": _START.format(dtype=dtype) + textwrap.dedent(body)
    for name, (dtypes, body) in _BODIES.items()
    for dtype in dtypes
}
