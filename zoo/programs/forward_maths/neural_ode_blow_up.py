"""A neural ODE solved by an unrolled Heun scheme. The learned field has a quadratic self-interaction, whose solutions blow up in finite
time; on horizons of 1.0 this is not reached, the trajectories of batch 3 have horizon 6.0 (60 solver steps) and overflow on the way.
True cause: the recurrence grows inside one forward; data and rate are ordinary."""
import torch
import torch.nn as nn


class Field(nn.Module):
    def __init__(self, d=3):
        super().__init__()
        self.linear = nn.Linear(d, d)
        self.quad = nn.Parameter(torch.full((d,), 0.8))

    def forward(self, x):
        return self.linear(x) + self.quad * x * x


class Heun(nn.Module):
    def __init__(self):
        super().__init__()
        self.field = Field()

    def forward(self, x, steps, dt=0.1):
        for _ in range(steps):
            k1 = self.field(x)
            k2 = self.field(x + dt * k1)
            x = x + 0.5 * dt * (k1 + k2)
        return x


def build():
    torch.manual_seed(0)
    model = Heun()
    with torch.no_grad():
        model.field.linear.weight.mul_(0.2)
        model.field.linear.bias.fill_(0.3)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.rand(6, 3, generator=g) * 0.5, torch.rand(6, 3, generator=g), 60 if i == 3 else 10) for i in range(5)]

    def loss_fn(m, b):
        return nn.functional.smooth_l1_loss(m(b[0], b[2]), b[1])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", module="field", phase="forward", op="aten.mul", first_bad_step=3))
