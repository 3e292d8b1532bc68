"""Demand forecasting with a Poisson likelihood and a log link, shelf features between 0.5 and 1.5. RMSprop has no bias correction: its
first step is ten times its rate for every weight, here +20, since the model starts below the counts. At step 1 the log of the rate is
some hundreds, and exp overflows. exp is innocent: at step 0 its argument was near zero. The true cause is the rate."""
import torch
from torch import nn


class DemandModel(nn.Module):
    def __init__(self, features=20):
        super().__init__()
        self.log_rate = nn.Linear(features, 1)

    def forward(self, x):
        return self.log_rate(x).squeeze(-1)


def loss_fn(model, batch):
    x, count = batch
    eta = model(x)
    return (torch.exp(eta) - count * eta).mean()


def build():
    torch.manual_seed(24)
    model = DemandModel()
    batches = [(torch.rand(64, 20) + 0.5, torch.poisson(torch.full((64,), 50.0))) for _ in range(5)]
    opt = torch.optim.RMSprop(model.parameters(), lr=2.0)
    truth = dict(
        cause="lr_too_high", first_bad_step=1, phase="forward", module="loss", op="aten.exp",
        line="return (torch.exp(eta) - count * eta).mean()",
        why="the first step of RMSprop is ten times the rate: every weight moves by 20 and the log of the rate jumps from 0 to 400",
        repair=("lr=2.0", "lr=0.02"),
    )
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None, truth=truth)
