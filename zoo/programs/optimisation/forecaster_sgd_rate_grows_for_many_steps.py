"""A linear forecaster on windows of electricity load. The windows are centred but not scaled, so the largest curvature is far above 1,
and plain SGD at 1.65 is some twenty times beyond the stable rate. Every step multiplies the error by about the same factor; the loss is
finite for more than a dozen steps and then it is not. The true cause is the rate."""
import math
import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, window=24, horizon=4):
        super().__init__()
        self.linear = nn.Linear(window, horizon)

    def forward(self, x):
        return self.linear(x)


def series(n=400):
    t = torch.arange(n).float()
    return 2.1 * torch.sin(2 * math.pi * t / 24) + 0.6 * torch.sin(2 * math.pi * t / 168) + 0.1 * torch.randn(n)


def loss_fn(model, batch):
    past, future = batch
    return nn.functional.mse_loss(model(past), future)


def build():
    torch.manual_seed(21)
    model = Forecaster()
    load = series()
    windows = load.unfold(0, 28, 1)
    windows = windows[torch.randperm(len(windows))]
    batches = [(w[:, :24], w[:, 24:]) for w in windows[:360].split(60)]
    opt = torch.optim.SGD(model.parameters(), lr=1.65)
    truth = dict(
        cause="lr_too_high", first_bad_step=14, phase="forward", module="loss", op="aten.mse_loss",
        line="return nn.functional.mse_loss(model(past), future)",
        why="the error is multiplied by the same factor at every step from the first one on; with a hundredth of the rate it shrinks",
        repair=("lr=1.65", "lr=0.0165"),
    )
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=25, autocast_dtype=None, truth=truth)
