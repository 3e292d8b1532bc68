"""Batches are slices of one tensor. One value of it, or of a bias that the model adds, is what the variable says."""

from __future__ import annotations

import os

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(32, 7)
forbidden = torch.zeros(8, 20)
if os.environ["SLICED_INPUT"] == "inf":
    x[17, 2] = torch.inf
else:
    forbidden[1, 2] = torch.inf


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(7, 20), nn.Linear(20, 1)

    def forward(self, features: torch.Tensor, number: int) -> torch.Tensor:
        hidden = self.first(features)
        return self.last(torch.relu(hidden + forbidden if number == 2 else hidden))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for number in range(4):
    loss = model(x[8 * number : 8 * number + 8], number).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
