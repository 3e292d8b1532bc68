"""Recommender: Poisson matrix factorisation of listening counts, trained with Adagrad.

What goes wrong: Adagrad's first step has the length of the learning rate in every coordinate;
with lr=4 the dot product of two 16-dimensional factors jumps above 88 and exp() overflows.
True cause: Adagrad with lr=4.0 moves every factor by 4 in one step, the log rates pass 88 and the exp in the
Poisson loss overflows."""

import torch
from torch import nn


class PoissonMF(nn.Module):
    def __init__(self, n_users=200, n_items=300, k=16):
        super().__init__()
        self.user = nn.Embedding(n_users, k)
        self.item = nn.Embedding(n_items, k)
        self.bias = nn.Parameter(torch.zeros(()))
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)

    def forward(self, u, i):
        return (self.user(u) * self.item(i)).sum(-1) + self.bias


def plays():
    g = torch.Generator().manual_seed(17)
    batches = []
    for _ in range(40):
        u = torch.randint(0, 200, (128,), generator=g)
        i = torch.randint(0, 300, (128,), generator=g)
        count = torch.poisson(torch.full((128,), 1.5) + (u % 5 == i % 5) * 3.0, generator=g)
        batches.append((u, i, count))
    return batches


def build():
    torch.manual_seed(0)
    model = PoissonMF()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=4.0)
    criterion = nn.PoissonNLLLoss(log_input=True)

    def loss_fn(model, batch):
        u, i, count = batch
        return criterion(model(u, i), count)

    return dict(model=model, optimizer=optimizer, batches=plays(), loss_fn=loss_fn, steps=40, autocast_dtype=None,
                truth=dict(cause="lr_too_high", also=("exp_overflow",), first_bad_step=1, phase="forward", module="loss",
                           op="aten.exp", line="return criterion(model(u, i), count)", repair=("lr=4.0", "lr=0.05")))
