"""Regression with a running range of the inputs and the best loss so far, both kept as buffers.

Healthy: the running minimum starts at inf, the maximum at -inf, the best loss at inf, as usual. They are
updated before they are used."""

import torch
from torch import nn


class RunningRange(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("low", torch.full((n,), float("inf")))
        self.register_buffer("high", torch.full((n,), float("-inf")))

    def forward(self, x):
        if self.training:
            self.low.copy_(torch.minimum(self.low, x.amin(0)))
            self.high.copy_(torch.maximum(self.high, x.amax(0)))
        return (x - self.low) / (self.high - self.low)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.range = RunningRange(5)
        self.mlp = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 1))
        self.register_buffer("best", torch.tensor(float("inf")))

    def forward(self, x):
        return self.mlp(self.range(x)).squeeze(1)


def build():
    torch.manual_seed(36)
    batches = []
    for _ in range(20):
        x = torch.rand(16, 5) * torch.tensor([1.0, 10.0, 100.0, 1e3, 1e4])
        batches.append((x, x[:, 0] + x[:, 4] * 1e-4))
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def loss_fn(model, batch):
        x, y = batch
        loss = (model(x) - y).pow(2).mean()
        model.best.copy_(torch.minimum(model.best, loss.detach()))
        return loss

    return dict(model=model, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=40, autocast_dtype=None,
                truth=dict(cause="benign", first_bad_step=None))
