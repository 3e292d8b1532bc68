"""Fraud detection with a precision metric that is printed beside the loss.

Healthy: as long as nothing is predicted positive the precision is 0/0 = NaN. It goes to the log only."""

import torch
import torch.nn.functional as F
from torch import nn


class FraudNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(11, 32), nn.SiLU(), nn.Linear(32, 1))
        nn.init.constant_(self.net[2].bias, -4.0)
        self.history = []

    def forward(self, x):
        return self.net(x).squeeze(1)


def precision(logits, y):
    hit = (logits > 0) & (y > 0.5)
    return hit.sum() / (logits > 0).sum()


def transactions():
    g = torch.Generator().manual_seed(64)
    for _ in range(30):
        x = torch.randn(64, 11, generator=g)
        yield x, (x[:, 0] + x[:, 1] > 2.2).float()


def build():
    torch.manual_seed(0)
    model = FraudNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss_fn(model, batch):
        x, y = batch
        logits = model(x)
        model.history.append(precision(logits.detach(), y))
        return F.binary_cross_entropy_with_logits(logits, y, pos_weight=torch.tensor(5.0))

    return dict(model=model, optimizer=optimizer, batches=list(transactions()), loss_fn=loss_fn, steps=30,
                autocast_dtype=None,
                truth=dict(cause="benign", first_bad_step=None))
