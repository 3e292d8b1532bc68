"""Label smoothing with soft labels from several annotators, weighted by their agreement.

Healthy: the entropy of the votes is p * log(p) with p = 0 in places, so NaN for a moment; torch.where
throws these entries away, all without gradient, before the weights reach the loss."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, 32)
        self.out = nn.Linear(32, 4)

    def forward(self, x):
        return self.out(F.gelu(self.inp(x)))


@torch.no_grad()
def agreement(votes):
    p = votes / votes.sum(1, keepdim=True)
    plogp = p * torch.log(p)
    entropy = -torch.where(p > 0, plogp, torch.zeros_like(p)).sum(1)
    return p, 1.0 / (1.0 + entropy)


def annotated():
    g = torch.Generator().manual_seed(53)
    for _ in range(30):
        x = torch.randn(24, 8, generator=g)
        true = x[:, :4].argmax(1)
        votes = F.one_hot(true, 4).float() * 3
        votes[torch.arange(24), torch.randint(0, 4, (24,), generator=g)] += 1
        yield x, votes


def build():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss_fn(model, batch):
        x, votes = batch
        p, weight = agreement(votes)
        ce = -(p * F.log_softmax(model(x), dim=1)).sum(1)
        return (weight * ce).sum() / weight.sum()

    return dict(model=model, optimizer=optimizer, batches=list(annotated()), loss_fn=loss_fn, steps=30,
                autocast_dtype=None,
                truth=dict(cause="benign", first_bad_step=None))
