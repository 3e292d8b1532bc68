"""A diagonal state-space layer scanned in Python. Two poles lie outside the unit circle (|a| = 1.3), which nobody saw on clips of
20 frames; the clip of batch 2 has 420 frames and the state overflows on the way. Activation checkpointing is on.
True cause: the recurrence multiplies again and again inside one forward. The data is ordinary, only longer; not the rate."""
import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint


class Cell(nn.Module):
    def __init__(self, d):
        super().__init__()
        a = torch.full((d,), 0.9)
        a[:2] = 1.3
        self.a = nn.Parameter(a)
        self.b = nn.Parameter(torch.ones(d))

    def forward(self, state, u):
        return self.a * state + self.b * u


class Ssm(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.inp, self.cell, self.out = nn.Linear(3, d), Cell(d), nn.Linear(d, 1)

    def scan(self, u):
        state = u.new_zeros(u.shape[0], u.shape[2])
        for t in range(u.shape[1]):
            state = self.cell(state, u[:, t])
        return state

    def forward(self, x):
        return self.out(checkpoint(self.scan, self.inp(x), use_reentrant=False) / x.shape[1]).squeeze(-1)


def build():
    torch.manual_seed(0)
    model = Ssm()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 420 if i == 2 else 20, 3, generator=g), torch.randn(4, generator=g)) for i in range(4)]

    def loss_fn(m, b):
        return nn.functional.huber_loss(m(b[0]), b[1])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", module="cell", phase="forward", op="aten.mul", first_bad_step=2))
