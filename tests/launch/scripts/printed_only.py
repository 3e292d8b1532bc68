"""A healthy script: forbidden classes have -Inf, and an entropy that is NaN by 0 times -Inf is only printed."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
forbidden = torch.tensor([0.0, 0.0, -torch.inf])
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _step in range(4):
    out = model(torch.randn(8, 4)) + forbidden
    loss = nn.functional.cross_entropy(out, torch.randint(2, (8,)))
    entropy = -(out.softmax(1) * out.log_softmax(1)).sum(1).mean().detach()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("entropy", entropy.item())
