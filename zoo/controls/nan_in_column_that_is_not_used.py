"""Credit scoring on a table whose column "income of spouse" is NaN nearly everywhere.

Healthy: the model takes only the columns it was told to use; the column with NaN is in the batch and
never enters a computation. One more column is imputed with a mean over the known values."""

import torch
import torch.nn.functional as F
from torch import nn

COLUMNS = ["age", "income", "debt", "income_spouse", "years_at_address"]
USED = [0, 1, 2, 4]


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("fill", torch.zeros(len(COLUMNS)))
        self.net = nn.Sequential(nn.Linear(len(USED), 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, table):
        x = torch.where(torch.isnan(table), self.fill, table)
        return self.net(x[:, USED]).squeeze(1)


def applications():
    g = torch.Generator().manual_seed(27)
    table = torch.randn(600, len(COLUMNS), generator=g)
    default = (table[:, 2] - table[:, 1] + 0.3 * torch.randn(600, generator=g) > 0).float()
    table[torch.rand(600, generator=g) < 0.95, 3] = float("nan")
    table[::40, 4] = float("nan")
    return table, default


def build():
    torch.manual_seed(0)
    table, default = applications()
    model = Scorer()
    model.fill.copy_(table.nanmean(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = list(zip(table.split(30), default.split(30)))

    def loss_fn(model, batch):
        table, default = batch
        return F.binary_cross_entropy_with_logits(model(table), default)

    return dict(model=model, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=40, autocast_dtype=None,
                truth=dict(cause="benign", first_bad_step=None))
