"""A row of 1e30 below a Subset: the script loads its last good state, halves the learning rate and goes on."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
x = torch.randn(48, 6)
y = x.sum(1, keepdim=True)
x[30, 2] = 1e30
loader = DataLoader(Subset(TensorDataset(x, y), range(16, 48)), batch_size=8)

model = nn.Linear(6, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
good = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
for _epoch in range(2):
    for features, wanted in loader:
        loss = ((model(features) - wanted) ** 2).mean()
        if not torch.isfinite(loss):
            model.load_state_dict(good[0])
            optimizer.load_state_dict(copy.deepcopy(good[1]))
            optimizer.param_groups[0]["lr"] *= 0.5
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    good = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
