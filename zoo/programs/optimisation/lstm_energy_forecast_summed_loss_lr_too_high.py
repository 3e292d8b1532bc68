"""Forecast of electricity load with an LSTM, one window of 48 hours per sample.

What goes wrong: the loss is a sum over the batch and the horizon, and the learning rate (0.03)
was tuned for a mean; the step is some hundred times too long and the read-out diverges.
True cause: the learning rate of 0.03 is far too high for a loss that is summed over batch and horizon, so the
read-out diverges."""

import torch
from torch import nn

HOURS, HORIZON = 48, 6


class LoadForecaster(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.readout = nn.Linear(hidden, HORIZON)

    def forward(self, window):
        out, _ = self.lstm(window)
        return self.readout(out[:, -1])


def load_curve(n_hours=1200):
    t = torch.arange(n_hours, dtype=torch.float32)
    torch.manual_seed(42)
    return torch.sin(t * 2 * torch.pi / 24) + 0.3 * torch.sin(t * 2 * torch.pi / 168) + 0.1 * torch.randn(n_hours)


def windows(curve, per_batch=32):
    starts = torch.arange(0, curve.numel() - HOURS - HORIZON, 3)
    xs = torch.stack([curve[s:s + HOURS] for s in starts]).unsqueeze(-1)
    ys = torch.stack([curve[s + HOURS:s + HOURS + HORIZON] for s in starts])
    return list(zip(xs.split(per_batch)[:-1], ys.split(per_batch)[:-1]))


def build():
    batches = windows(load_curve())
    torch.manual_seed(7)
    net = LoadForecaster()
    opt = torch.optim.SGD(net.parameters(), lr=0.03)
    criterion = nn.MSELoss(reduction="sum")

    def loss_fn(net, batch):
        x, y = batch
        return criterion(net(x), y)

    return dict(model=net, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=60, autocast_dtype=None,
                truth=dict(cause="lr_too_high", also=("exploding_gradient",), first_bad_step=30, phase="forward", module="loss",
                           op="aten.mse_loss", line="return criterion(net(x), y)",
                           repair=("SGD(net.parameters(), lr=0.03)", "SGD(net.parameters(), lr=2e-4)")))
