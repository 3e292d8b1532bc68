"""Two tasks (depth and class) with learned uncertainty weights: loss / (2 s^2) + log(s).

What goes wrong: s itself is the parameter. Nothing keeps it positive; the easy task drives it towards
zero, one step carries it below, and log of a negative number is NaN.
Follows https://github.com/QunBB/DeepLearning/issues/1.
True cause: the learned scale s of the easy task steps below zero, and the log of a negative number is NaN."""

import torch
import torch.nn.functional as F
from torch import nn


class TwoTasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(6, 24), nn.ReLU())
        self.depth, self.label = nn.Linear(24, 1), nn.Linear(24, 3)

    def forward(self, x):
        h = self.shared(x)
        return self.depth(h).squeeze(1), self.label(h)


class UncertaintyWeighting(nn.Module):
    def __init__(self, n_tasks=2):
        super().__init__()
        self.sigma = nn.Parameter(torch.ones(n_tasks))

    def forward(self, losses):
        total = 0.0
        for loss, s in zip(losses, self.sigma):
            total = total + loss / (2 * s ** 2) + torch.log(s)
        return total


def scenes():
    g = torch.Generator().manual_seed(29)
    for _ in range(40):
        x = torch.randn(32, 6, generator=g)
        yield x, 0.05 * x[:, 0], x[:, :3].argmax(1)


def build():
    torch.manual_seed(0)
    model = nn.ModuleDict({"net": TwoTasks(), "weighting": UncertaintyWeighting()})
    optimizer = torch.optim.SGD([{"params": model["net"].parameters()},
                                 {"params": model["weighting"].parameters(), "lr": 0.06}], lr=0.05)

    def loss_fn(model, batch):
        x, depth, label = batch
        d, l = model["net"](x)
        return model["weighting"]((F.mse_loss(d, depth), F.cross_entropy(l, label)))

    return dict(model=model, optimizer=optimizer, batches=list(scenes()), loss_fn=loss_fn, steps=40,
                autocast_dtype=None,
                truth=dict(cause="domain_error", also=("log_of_zero", "lr_too_high"), first_bad_step=37, phase="forward",
                           module="weighting", op="aten.log", line="+ torch.log(s)",
                           repair=("loss / (2 * s ** 2) + torch.log(s)", "0.5 * torch.exp(-s) * loss + 0.5 * s")))
