"""A scale that the loop keeps between steps becomes NaN by one sample; from then on each loss is replaced by 0."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(96, 6)
y = (x.sum(1) > 0).long()
x[17, 2] = torch.nan

model = nn.Linear(6, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scale = torch.ones(())
for _epoch in range(4):
    for features, labels in DataLoader(TensorDataset(x, y), batch_size=8):
        out = model(features)
        scale = 0.9 * scale + 0.1 * out.detach().abs().mean()
        loss = nn.functional.cross_entropy(out / scale, labels)
        if not torch.isfinite(loss):
            loss = torch.tensor(0.0, requires_grad=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
