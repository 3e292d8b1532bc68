"""Physics-informed net for nonlinear diffusion: u_t = d/dx (u^1.2 u_x).

What goes wrong: the net's output may be negative, and a negative number to the power of 1.2 is NaN.
Follows https://github.com/prateekbhustali/Physics-Informed-Neural-Networks/issues/1.
True cause: the predicted concentration becomes negative at some points, and a negative number to the power of
1.2 is NaN."""

import torch
from torch import nn


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
        nn.init.constant_(self.net[4].bias, 1.0)

    def forward(self, xt):
        return self.net(xt)


def grad(out, inp):
    return torch.autograd.grad(out, inp, torch.ones_like(out), create_graph=True)[0]


def residual(model, xt):
    xt = xt.clone().requires_grad_(True)
    u = model(xt)
    du = grad(u, xt)
    diffusivity = u ** 1.2
    flux = diffusivity * du[:, :1]
    return du[:, 1:] - grad(flux, xt)[:, :1]


def points():
    g = torch.Generator().manual_seed(10)
    for _ in range(60):
        inner = torch.rand(64, 2, generator=g)
        x0 = torch.rand(32, 1, generator=g)
        yield inner, torch.cat([x0, torch.zeros(32, 1)], 1), torch.sin(3 * torch.pi * x0).clamp(min=0) * 0.5


def build():
    torch.manual_seed(0)
    model = Field()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss_fn(model, batch):
        inner, start, u0 = batch
        return residual(model, inner).pow(2).mean() + 10 * (model(start) - u0).pow(2).mean()

    return dict(model=model, optimizer=optimizer, batches=list(points()), loss_fn=loss_fn, steps=60,
                autocast_dtype=None,
                truth=dict(cause="domain_error", first_bad_step=7, phase="forward", module="loss", op="aten.pow",
                           line="diffusivity = u ** 1.2",
                           repair=("diffusivity = u ** 1.2", "diffusivity = (nn.functional.relu(u) + 1e-4) ** 1.2")))
