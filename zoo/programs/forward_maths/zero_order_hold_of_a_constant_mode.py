"""A diagonal state space layer with decay rates 0, 1, 2, ... discretises its input matrix with the exact zero-order hold (exp(dt A) - 1) / A. The first mode
does not decay: A is zero.
After https://github.com/MzeroMiko/VMamba/issues/98 (the zero-order hold of B divides by A; in practice delta * B is used).
True cause: division by zero."""
import torch
from torch import nn


class DiagonalSSM(nn.Module):
    def __init__(self, d, modes=6):
        super().__init__()
        self.A = nn.Parameter(-torch.arange(modes).float().repeat(d, 1))
        self.B, self.C = nn.Parameter(torch.randn(d, modes) * 0.3), nn.Parameter(torch.randn(d, modes) * 0.3)
        self.log_dt = nn.Parameter(torch.full((d, 1), -2.0))

    def discretise(self):
        dt = self.log_dt.exp()
        a_bar = torch.exp(dt * self.A)
        b_bar = (a_bar - 1) / self.A * self.B
        return a_bar, b_bar

    def forward(self, u):
        a_bar, b_bar = self.discretise()
        state = u.new_zeros(u.shape[0], *self.A.shape)
        ys = []
        for t in range(u.shape[1]):
            state = a_bar * state + b_bar * u[:, t, :, None]
            ys.append((state * self.C).sum(-1))
        return torch.stack(ys, 1)


class Forecaster(nn.Module):
    def __init__(self, channels=3, d=8):
        super().__init__()
        self.up, self.ssm, self.down = nn.Linear(channels, d), DiagonalSSM(d), nn.Linear(d, channels)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.ssm(self.up(x))))


def build():
    torch.manual_seed(0)
    model = Forecaster()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    g = torch.Generator().manual_seed(2)
    batches = [torch.randn(4, 15, 3, generator=g).cumsum(1) * 0.2 for _ in range(3)]

    def loss_fn(m, series):
        return nn.functional.l1_loss(m(series[:, :-1]), series[:, 1:])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="ssm", phase="forward", op="aten.div", first_bad_step=0, line="b_bar = (a_bar - 1) / self.A * self.B",
                           why="the first mode has A = 0: (1 - 1) / 0"))
