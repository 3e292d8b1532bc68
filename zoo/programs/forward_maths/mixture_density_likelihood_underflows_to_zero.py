"""Mixture density network for an inverse problem, likelihood written out with exp and log.

What goes wrong: one target lies far away from all components, every Gaussian density underflows to 0
and the log of the sum is -inf.
Follows https://github.com/keras-team/keras/issues/2586 and https://github.com/keras-team/keras/issues/1061.
True cause: a target far from all components makes every density underflow to zero, so the log likelihood is
log(0)."""
import math

import torch
from torch import nn


class MDN(nn.Module):
    def __init__(self, k=5):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(1, 32), nn.Tanh())
        self.pi, self.mu, self.log_sigma = nn.Linear(32, k), nn.Linear(32, k), nn.Linear(32, k)

    def forward(self, x):
        h = self.hidden(x)
        return self.pi(h).softmax(-1), self.mu(h), self.log_sigma(h).exp()


def nll(pi, mu, sigma, y):
    density = torch.exp(-0.5 * ((y - mu) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
    likelihood = (pi * density).sum(dim=1)
    return -torch.log(likelihood).mean()


def arm_positions():
    g = torch.Generator().manual_seed(44)
    for i in range(20):
        y = torch.rand(32, 1, generator=g)
        x = y + 0.3 * torch.sin(2 * math.pi * y) + 0.03 * torch.randn(32, 1, generator=g)
        if i == 13:
            y[20] = 90.0  # degrees instead of turns
        yield x, y


def build():
    torch.manual_seed(0)
    model = MDN()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss_fn(model, batch):
        x, y = batch
        return nll(*model(x), y)

    return dict(model=model, optimizer=optimizer, batches=list(arm_positions()), loss_fn=loss_fn, steps=20,
                autocast_dtype=None,
                truth=dict(cause="log_of_zero", also=("bad_input_data", "input_out_of_scale"), first_bad_step=13, phase="forward",
                           module="loss", op="aten.log", line="torch.log(likelihood)", sample=20,
                           repair=("torch.log(likelihood)", "torch.log(likelihood + 1e-20)")))
