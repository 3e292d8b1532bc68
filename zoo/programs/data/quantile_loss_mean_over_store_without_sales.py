"""Demand forecast with quantile (pinball) loss, averaged per store; batches are functools.partial
objects that make the data when the loss asks for it.

What goes wrong: one batch has no row for the third store, and the mean of an empty selection is NaN.
True cause: one week has no rows of the third store, so its loss is the mean of an empty tensor."""
from functools import partial

import torch
from torch import nn

QUANTILES = (0.1, 0.5, 0.9)
STORES = 3


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.store = nn.Embedding(STORES, 4)
        self.mlp = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, len(QUANTILES)))

    def forward(self, x, store):
        return self.mlp(torch.cat([x, self.store(store)], dim=1))


def read_week(week, rows, closed=()):
    g = torch.Generator().manual_seed(week)
    x = torch.randn(rows, 5, generator=g)
    store = torch.arange(rows) % STORES
    for s in closed:
        store[store == s] = 0
    return x, store, x[:, 0] * 2 + store + torch.randn(rows, generator=g)


def pinball(pred, y):
    losses = []
    for k, q in enumerate(QUANTILES):
        err = y - pred[:, k]
        losses.append(torch.maximum(q * err, (q - 1) * err))
    return torch.stack(losses).mean(0)


def per_store(model, read):
    x, store, y = read()
    row_loss = pinball(model(x, store), y)
    total = 0.0
    for s in range(STORES):
        total = total + row_loss[store == s].mean()
    return total / STORES


def build():
    torch.manual_seed(2)
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    batches = [partial(read_week, week, 30) for week in range(24)]
    batches[17] = partial(read_week, 17, rows=30, closed=(2,))
    return dict(model=model, optimizer=optimizer, batches=batches, loss_fn=per_store, steps=24,
                autocast_dtype=None,
                truth=dict(cause="empty_reduction", also=("bad_input_data", "division_by_zero"), first_bad_step=17, phase="forward",
                           module="loss", op="aten.mean", line="row_loss[store == s].mean()",
                           repair=("row_loss[store == s].mean()", "row_loss[store == s].sum() / (store == s).sum().clamp(min=1)")))
