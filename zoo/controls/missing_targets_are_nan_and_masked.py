"""Multi-task toxicity prediction: most molecules were measured in few of the assays, the rest is NaN.

Healthy: squared errors of missing targets are NaN for a moment and are cut out by a boolean index; the
gradient that comes back to these places is zero."""

import torch
from torch import nn


class ToxNet(nn.Module):
    def __init__(self, assays=6):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Dropout(0.0), nn.Linear(40, assays))

    def forward(self, x):
        return self.net(x)


def masked_mse(pred, y):
    diff = pred - y
    known = ~torch.isnan(y)
    return diff[known].pow(2).mean()


def molecules():
    g = torch.Generator().manual_seed(71)
    w = torch.randn(20, 6, generator=g) * 0.3
    for _ in range(25):
        x = torch.randn(32, 20, generator=g)
        y = x @ w + 0.1 * torch.randn(32, 6, generator=g)
        y[torch.rand(32, 6, generator=g) < 0.7] = float("nan")
        yield x, y


def build():
    torch.manual_seed(0)
    model = ToxNet()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def loss_fn(model, batch):
        x, y = batch
        return masked_mse(model(x), y)

    return dict(model=model, optimizer=optimizer, batches=list(molecules()), loss_fn=loss_fn, steps=25,
                autocast_dtype=None,
                truth=dict(cause="benign", first_bad_step=None))
