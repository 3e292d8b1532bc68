"""A script that ends itself at a bad loss, whose reason is computed outside the graph."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
factors = iter([torch.ones(()), torch.ones(()), torch.tensor(torch.nan)])
for factor in factors:
    x = torch.randn(4, 3)
    with torch.no_grad():
        scale = next(iter([factor])) * x.std()
    loss = (model(x) * scale).mean()
    if not torch.isfinite(loss):
        sys.exit("the loss is not finite")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
