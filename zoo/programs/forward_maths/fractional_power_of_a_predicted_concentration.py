"""A physics-informed network for nonlinear diffusion: the diffusivity is a fractional power of the predicted concentration. The network may predict negative
values, and for the points of the third batch it does.
After https://github.com/prateekbhustali/Physics-Informed-Neural-Networks/issues/1 (forward can return negative values, and x ** 1.2 is NaN for them).
True cause: a fractional power of a negative number."""
import torch
from torch import nn


class Concentration(nn.Module):
    def __init__(self, hidden=20):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        with torch.no_grad():
            self.net[-1].weight.mul_(0.2)
            self.net[-1].bias.fill_(0.8)

    def forward(self, xt):
        return self.net(xt) - 0.5 * xt[:, :1]


def gradients(outputs, inputs):
    return torch.autograd.grad(outputs, inputs, grad_outputs=torch.ones_like(outputs), create_graph=True)[0]


def pde_loss(model, points):
    g = points.clone().requires_grad_()
    u = model(g)
    diffusivity = 1.1 * u ** 1.2
    flux = diffusivity * gradients(u, g)[:, [0]]
    return (gradients(u, g)[:, [1]] - gradients(flux, g)[:, [0]]).square().mean()


def build():
    torch.manual_seed(9)
    model = nn.ModuleDict({"c": Concentration()})
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(9)
    batches = []
    for extent in (0.8, 0.8, 3.0, 0.8):                  # the third domain reaches beyond the front
        interior = torch.rand(16, 2, generator=g) * torch.tensor([extent, 1.0])
        edge = torch.stack([torch.zeros(6), torch.rand(6, generator=g)], -1)
        batches.append((interior, edge))

    def loss_fn(m, b):
        return pde_loss(m["c"], b[0]) + (m["c"](b[1]) - 1.0).square().mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="domain_error", module="loss", phase="forward", op="aten.pow", first_bad_step=2, loss_finite_at_first_bad_step=False,
                           line="diffusivity = 1.1 * u ** 1.2", why="the prediction is below zero for x above about 1.6"))
