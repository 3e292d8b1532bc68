"""Gradients of 64 micro-batches are accumulated, and the loss is not divided by 64; the rate was tuned for the mean.
Written for this.
True cause: the effective learning rate is too high (64 times the one that was tuned)."""
import torch
from torch import nn

ACCUMULATE = 64


def micro_loss(model, micro):
    features, target = micro
    return nn.functional.smooth_l1_loss(model(features), target, reduction="none").pow(2).mean()


def build():
    torch.manual_seed(30)
    model = nn.Sequential(nn.Linear(7, 32), nn.CELU(), nn.Linear(32, 32), nn.CELU(), nn.Linear(32, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(31)
    big = [[(torch.randn(4, 7, generator=g), torch.randn(4, 1, generator=g) * 3) for _ in range(ACCUMULATE)] for _ in range(3)]

    def loss_fn(m, micros):
        total = 0.0
        for micro in micros:
            total = total + micro_loss(m, micro)
        return total

    return dict(model=model, optimizer=opt, batches=big, loss_fn=loss_fn, steps=15, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="aten.pow", first_bad_step=4, line="smooth_l1_loss(model(features)"))
