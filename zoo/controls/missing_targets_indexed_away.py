"""Targets contain NaN for unobserved values; the loss selects the observed ones by index before any arithmetic. Healthy: loss and gradients are finite."""
import torch
from torch import nn


def build():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 4))
    g = torch.Generator().manual_seed(4)
    data = []
    for _ in range(5):
        x, y = torch.randn(8, 6, generator=g), torch.randn(8, 4, generator=g)
        y[torch.rand(8, 4, generator=g) < 0.3] = float("nan")
        data.append({"x": x, "y": y})

    def loss_fn(m, b):
        seen = ~torch.isnan(b["y"])
        return (m(b["x"])[seen] - b["y"][seen]).square().mean()

    return dict(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-2), batches=data, steps=10, autocast_dtype=None, loss_fn=loss_fn,
                truth=dict(cause="benign", first_bad_step=None))
