"""A small neural ODE is trained with SGD at 0.01 and momentum instead of Adam: after a few updates the field is so steep that the solver overflows.
After https://github.com/rtqichen/torchdiffeq/issues/58 (Adam works; SGD lr 0.01 momentum 0.9 explodes after two iterations).
True cause: the learning rate is too high for a loss that is summed over the trajectory."""
import torch
import torch.nn as nn


class Field(nn.Module):
    def __init__(self, dim=3, hidden=20):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, hidden), nn.ELU(), nn.Linear(hidden, dim))

    def forward(self, t, y):
        return self.net(y)


def odeint(func, y0, ts):
    ys, y = [y0], y0
    for a, b in zip(ts[:-1], ts[1:]):
        h = b - a
        k1 = func(a, y)
        k2 = func(a + h / 2, y + h / 2 * k1)
        y = y + h * k2
        ys.append(y)
    return torch.stack(ys)


def build():
    torch.manual_seed(1)
    func = Field()
    optimizer = torch.optim.SGD(func.parameters(), lr=0.01, momentum=0.9)
    t = torch.linspace(0, 6, 40)
    target = torch.stack([torch.cos(t), torch.sin(t), 0.1 * t], -1)[:, None].repeat(1, 16, 1)
    gen = torch.Generator().manual_seed(5)
    starts = [target[0] + 0.05 * torch.randn(16, 3, generator=gen) for _ in range(5)]

    def loss_fn(model, y0):
        pred = odeint(model, y0, t)
        return 0.5 * ((pred - target) / 0.3).pow(2).sum(dim=(0, 2)).mean()

    return dict(model=func, optimizer=optimizer, batches=starts, loss_fn=loss_fn, steps=10, autocast_dtype=None,
                truth=dict(cause="lr_too_high", also=("exploding_recurrence",), module="net.2", phase="forward", op="aten.addmm", first_bad_step=1, line="return self.net(y)"))
