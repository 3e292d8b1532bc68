"""A neural ODE with a quadratic right-hand side is integrated with Euler steps; one trajectory of long duration runs into the singularity.
After https://github.com/patrick-kidger/NeuralCDE/issues/2 (this type of error is caused by the blow-up of the ordinary equations).
True cause: the recurrence explodes within one forward pass."""
import torch
from torch import nn


class Quadratic(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.a = nn.Parameter(torch.full((d,), 0.5))
        self.mix = nn.Linear(d, d)

    def forward(self, y):
        return self.a * y * y + 0.1 * torch.tanh(self.mix(y))


def euler(f, y, steps, h=0.1):
    for _ in range(steps):
        y = y + h * f(y)
    return y


def build():
    torch.manual_seed(2)
    f = nn.ModuleDict({"field": Quadratic()})
    opt = torch.optim.Adam(f.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(3)
    data = [dict(y0=0.5 + 0.1 * torch.rand(6, 4, generator=g), steps=n) for n in (10, 15, 12, 90, 10)]

    def loss_fn(m, b):
        end = euler(m["field"], b["y0"], b["steps"])
        return (end - 1).abs().mean()

    return dict(model=f, optimizer=opt, batches=data, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", module="field", also_module=("loss",), phase="forward", op="aten.mul", first_bad_step=3, line="self.a * y * y"))
