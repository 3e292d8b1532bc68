"""Metric learning with batch-hard mining: positives are hidden by inf before the minimum over negatives.

Healthy: every row has a negative, so the minimum is finite and the inf entries get no gradient."""

import torch
from torch import nn


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(14, 32), nn.PReLU(), nn.Linear(32, 6))

    def forward(self, x):
        return self.net(x)


def batch_hard(emb, y, margin=1.0):
    d = ((emb[:, None] - emb[None]) ** 2).sum(-1)
    same = y[:, None] == y[None]
    hardest_pos = d.masked_fill(~same, float("-inf")).max(dim=1).values
    hardest_neg = d.masked_fill(same, float("inf")).min(dim=1).values
    return torch.relu(hardest_pos - hardest_neg + margin).mean()


def identities():
    g = torch.Generator().manual_seed(16)
    centers = torch.randn(5, 14, generator=g)
    y = torch.arange(20) % 5
    return [(centers[y] + 0.6 * torch.randn(20, 14, generator=g), y) for _ in range(30)]


def build():
    torch.manual_seed(0)
    model = Embedder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_fn(model, batch):
        x, y = batch
        return batch_hard(model(x), y)

    return dict(model=model, optimizer=optimizer, batches=identities(), loss_fn=loss_fn, steps=30,
                autocast_dtype=None,
                truth=dict(cause="benign", first_bad_step=None))
