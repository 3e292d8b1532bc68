"""Regression of a car's fuel use with OneCycleLR.

What goes wrong: max_lr was read off the wrong end of a learning-rate finder plot (0.15). The first
steps of the cycle are harmless, the loss even falls; near the peak the run diverges.
Like https://github.com/wandb/senpai/pull/3131 (destabilised as the rate approached the peak).
True cause: the peak of the one-cycle schedule (0.15) is far too high; training diverges as the rate climbs
towards it."""

import torch
from torch import nn

STEPS = 80


class FuelNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(9, 40), nn.Tanh(), nn.Linear(40, 40), nn.ReLU())
        self.out = nn.Linear(40, 1)

    def forward(self, x):
        return self.out(self.features(x)).squeeze(1)


def cars():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(640, 9, generator=g)
    y = 7 + 2 * x[:, 0] + x[:, 1] * x[:, 2] + 0.2 * torch.randn(640, generator=g)
    return list(zip(x.split(32), y.split(32)))


def scheduled(batches, scheduler):
    """The batches over and over; the script steps its schedule after each update."""
    while True:
        for batch in batches:
            yield batch
            scheduler.step()


def build():
    torch.manual_seed(12)
    model = FuelNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=0.15,
        total_steps=STEPS + 1, pct_start=0.6, div_factor=500)
    criterion = nn.MSELoss()

    def loss_fn(model, batch):
        x, y = batch
        return criterion(model(x), y)

    return dict(model=model, optimizer=optimizer, batches=scheduled(cars(), scheduler), loss_fn=loss_fn, steps=STEPS,
                autocast_dtype=None,
                truth=dict(cause="lr_too_high", also=("exploding_gradient",), first_bad_step=43, phase="forward", module="loss",
                           op="aten.mse_loss", line="return criterion(model(x), y)",
                           repair=("max_lr=0.15", "max_lr=0.02")))
