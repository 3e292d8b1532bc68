"""Forecast of electricity load with an LSTM; the loss is a sum and the learning rate fits a sum.

Healthy twin of lstm_energy_forecast_summed_loss_lr_too_high.py."""

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
    opt = torch.optim.SGD(net.parameters(), lr=2e-4)
    criterion = nn.MSELoss(reduction="sum")

    def loss_fn(net, batch):
        x, y = batch
        return criterion(net(x), y)

    return dict(model=net, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=60, autocast_dtype=None,
                truth=dict(cause="benign", first_bad_step=None))
