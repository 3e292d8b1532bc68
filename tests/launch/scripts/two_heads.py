"""Two losses of one batch. The script leaves the bad one out, but the other one reads the same bad features."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(32, 6)
y = (x.sum(1) > 0).long()
x[17, 2] = torch.nan

body = nn.Linear(6, 12)
first, second = nn.Linear(12, 2), nn.Linear(12, 2)
parameters = [*body.parameters(), *first.parameters(), *second.parameters()]
optimizer = torch.optim.SGD(parameters, lr=1e-2)
for features, labels in DataLoader(TensorDataset(x, y), batch_size=8):
    hidden = body(features)
    losses = [
        nn.functional.cross_entropy(head(part), labels)
        for head, part in ((first, hidden), (second, hidden.nan_to_num()))
    ]
    loss = sum(each for each in losses if torch.isfinite(each))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
