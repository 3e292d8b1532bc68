"""Regression on log1p of the units sold (root mean squared log error).

What goes wrong: in the table, -1 stands for "not counted". log1p(-1) is -inf.
True cause: a target of -1 (code for a missing count) is outside the range of the loss; log1p(-1) is -inf."""

import torch
from torch import nn


class SalesNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.shop = nn.Embedding(6, 4)
        self.body = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 1), nn.Softplus())

    def forward(self, x, shop):
        return self.body(torch.cat([x, self.shop(shop)], 1)).squeeze(1)


class MSLE(nn.Module):
    """mean squared logarithmic error"""

    def forward(self, pred, units):
        return (torch.log1p(pred) - torch.log1p(units)).pow(2).mean()


def table():
    g = torch.Generator().manual_seed(70)
    x = torch.randn(400, 5, generator=g)
    shop = torch.randint(0, 6, (400,), generator=g)
    units = torch.poisson(torch.exp(0.5 * x[:, 0]) * (1 + shop), generator=g)
    units[371] = -1.0
    return x, shop, units


def build():
    torch.manual_seed(0)
    model = SalesNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = list(zip(*(t.split(20) for t in table())))
    criterion = MSLE()

    def loss_fn(model, batch):
        x, shop, units = batch
        return criterion(model(x, shop), units)

    return dict(model=model, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=20, autocast_dtype=None,
                truth=dict(cause="label_out_of_range", also=("log_of_zero", "bad_input_data", "domain_error"), first_bad_step=18,
                           phase="forward", module="loss", op="aten.log1p", also_phase=("data",), line="torch.log1p(units)", sample=11,
                           repair=("torch.log1p(units)", "torch.log1p(units.clamp(min=0))")))
