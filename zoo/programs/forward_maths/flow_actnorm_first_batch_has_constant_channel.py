"""Normalising flow (actnorm and affine coupling) with the data-dependent start of Glow.

What goes wrong: the scale of actnorm is set from the first batch as 1/std, and in that batch one sensor
channel is constant (not yet switched on), so the scale is inf.
True cause: the data-dependent start divides by the standard deviation of a channel that is constant in the
first batch."""

import torch
from torch import nn


class ActNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.ones(d))
        self.ready = False

    def forward(self, x):
        if not self.ready:
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
                self.scale.copy_(1.0 / x.std(0))
            self.ready = True
        return (x + self.shift) * self.scale, self.scale.abs().log().sum()


class Coupling(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d // 2, 24), nn.ReLU(), nn.Linear(24, d))

    def forward(self, x):
        a, b = x.chunk(2, 1)
        s, t = self.net(a).chunk(2, 1)
        s = torch.tanh(s)
        return torch.cat([b * s.exp() + t, a], 1), s.sum(1)


class Flow(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.norm, self.c1, self.c2 = ActNorm(d), Coupling(d), Coupling(d)

    def forward(self, x):
        z, ld0 = self.norm(x)
        z, ld1 = self.c1(z)
        z, ld2 = self.c2(z)
        return (0.5 * z.pow(2).sum(1) - ld0 - ld1 - ld2).mean()


def build():
    torch.manual_seed(2)
    batches = [torch.randn(64, 4) @ torch.randn(4, 4) * 0.5 + 1.0 for _ in range(12)]
    batches[0][:, 2] = 0.25
    model = Flow()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return dict(model=model, optimizer=optimizer, batches=batches, loss_fn=lambda model, batch: model(batch), steps=12, autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=("bad_initialisation", "bad_input_data"), first_bad_step=0, phase="forward",
                           module="norm", op="aten.reciprocal", also_op=("aten.div", "aten.mul"), line="1.0 / x.std(0)",
                           repair=("1.0 / x.std(0)", "1.0 / x.std(0).clamp(min=0.5)")))
