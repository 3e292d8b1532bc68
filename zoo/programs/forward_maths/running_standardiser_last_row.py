"""Features are standardised with running statistics: normalise with the statistics so far, then update them. The last batch of the epoch
(step 3) has one row: its variance is NaN and goes into the buffer. That step's loss is finite; all later ones are NaN.
True cause: the variance of one element, which poisons the buffer. TRAP: the step that does the damage looks healthy."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class RunningStandardise(nn.Module):
    def __init__(self, d, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer("var", torch.ones(d))

    def forward(self, x):
        y = (x - self.mean) / torch.sqrt(self.var + 1e-5)
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), self.momentum)
                self.var.lerp_(x.var(0), self.momentum)
        return y


class Tabular(nn.Module):
    def __init__(self):
        super().__init__()
        self.standardise = RunningStandardise(9)
        self.net = nn.Sequential(nn.Linear(9, 20), nn.ReLU(), nn.Linear(20, 1))

    def forward(self, x):
        return self.net(self.standardise(x)).squeeze(-1)


def build():
    torch.manual_seed(0)
    model = Tabular()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(25, 9, generator=g) * 3 + 1, torch.rand(25, generator=g)
    batches = [(x[i:i + 8], y[i:i + 8]) for i in range(0, 25, 8)]

    def loss_fn(m, b):
        return F.mse_loss(m(b[0]), b[1])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="std_of_one_element", module="standardise", phase="forward", op="aten.var", first_bad_step=3, trap=True,
                           loss_finite_at_first_bad_step=True, grads_finite=True, poisoned_state=["standardise.var"],
                           also=["bn_buffers_poisoned"], also_op=["aten.lerp_"]))
