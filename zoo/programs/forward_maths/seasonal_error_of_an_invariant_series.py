"""A global forecaster is trained on the scaled error of the M4 competition: the absolute error over the error of a seasonal naive forecast on the history. A meter that
was never read has a history without any change.
After https://github.com/awslabs/gluonts/pull/3316 (MASE and MSIS are inf or NaN when the seasonal error is zero, for invariant series).
True cause: division by zero."""
import torch
from torch import nn


class ResidualBlock(nn.Module):
    def __init__(self, history, horizon, width=24):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(history, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.backcast, self.forecast = nn.Linear(width, history), nn.Linear(width, horizon)

    def forward(self, x):
        h = self.body(x)
        return x - self.backcast(h), self.forecast(h)


class NBeats(nn.Module):
    def __init__(self, history=16, horizon=4, blocks=3):
        super().__init__()
        self.blocks = nn.ModuleList(ResidualBlock(history, horizon) for _ in range(blocks))

    def forward(self, x):
        level = x.mean(1, keepdim=True)
        x, total = x - level, 0
        for block in self.blocks:
            x, part = block(x)
            total = total + part
        return total + level


class ScaledError(nn.Module):
    def __init__(self, season):
        super().__init__()
        self.season = season

    def forward(self, forecast, target, history):
        naive = (history[:, self.season:] - history[:, :-self.season]).abs().mean(1, keepdim=True)
        return ((forecast - target).abs() / naive).mean()


def build():
    torch.manual_seed(0)
    model = nn.ModuleDict({"net": NBeats(), "mase": ScaledError(4)})
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(9)
    batches = []
    for i in range(6):
        series = torch.rand(6, 20, generator=g) + torch.arange(20) * 0.05
        if i == 3:
            series[5] = 7.0
        batches.append((series[:, :16], series[:, 16:]))

    def loss_fn(m, b):
        return m["mase"](m["net"](b[0]), b[1], b[0])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="mase", phase="forward", op="aten.div", first_bad_step=3, sample=5,
                           line="return ((forecast - target).abs() / naive).mean()", why="series 5 is constant, so its seasonal error is 0 and the quotient inf"))
