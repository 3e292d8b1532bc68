"""Rare-defect detector: binary focal loss, network in bfloat16 autocast.

What goes wrong: the probability is clamped to 1 - 1e-6 "for safety", but in bfloat16 that number is
1.0. For a very sure negative-turned-positive the log of 1 - p is log(0).
The person guards the loop with isnan(loss), which does not help: the loss is inf, not NaN.
Like https://github.com/mkocabas/focal-loss-keras/issues/17 (log in the focal loss needs an epsilon).
True cause: in bfloat16 the clamp bound 1 - 1e-6 rounds to 1.0, so log(1 - p) is log(0) for a saturated
prediction."""

import torch
from torch import nn


class DefectNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
        self.score = nn.Linear(32, 1)

    def forward(self, x):
        return self.score(self.features(x)).squeeze(1)


class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0, alpha=0.75):
        super().__init__()
        self.gamma, self.alpha = gamma, alpha

    def forward(self, logits, target):
        p = torch.sigmoid(logits).clamp(1e-6, 1 - 1e-6)
        pos = -self.alpha * (1 - p) ** self.gamma * torch.log(p)
        neg = -(1 - self.alpha) * p ** self.gamma * torch.log(1 - p)
        return torch.where(target > 0.5, pos, neg).float().mean()


def parts():
    g = torch.Generator().manual_seed(3)
    for i in range(15):
        x = torch.randn(16, 10, generator=g)
        y = (x[:, 0] + 0.5 * x[:, 1] > 1).float()
        if i == 9:
            x[4] = x[4] * 2 + 40.0  # an odd part, far from the others, no defect
            y[4] = 0.0
        yield x, y


def build():
    torch.manual_seed(1)
    model = DefectNet()
    nn.init.constant_(model.score.bias, 1.0)
    with torch.no_grad():
        model.score.weight.abs_()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = FocalLoss()

    def loss_fn(model, batch):
        x, y = batch
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return criterion(model(x), y)

    return dict(model=model, optimizer=optimizer, batches=list(parts()), loss_fn=loss_fn, steps=15,
                autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", also=("log_of_zero",), first_bad_step=9, phase="forward", module="loss",
                           op="aten.log", line="torch.log(1 - p)", sample=4,
                           repair=("torch.sigmoid(logits).clamp", "torch.sigmoid(logits.float()).clamp")))
