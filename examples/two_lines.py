"""Two lines of an existing loop change. One batch is in the wrong unit, and a log of zero makes its loss Inf.

Run it: python examples/two_lines.py
"""

from __future__ import annotations

import torch
from torch import nn

import nantrap

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
guard = nantrap.Guard(model, optimizer, max_grad_norm=1.0)

for step in range(20):
    inputs, target = torch.randn(8, 4), torch.randint(0, 3, (8,))
    if step == 7:
        inputs *= 1e4  # a sensor in the wrong unit: softmax saturates, and one probability is exactly 0
    probability = torch.softmax(model(inputs), dim=-1)
    loss = -torch.log(probability[torch.arange(8), target]).mean()
    guard.backward(loss)  # was: loss.backward()
    outcome = guard.step()  # was: clip_grad_norm_, optimizer.step(), optimizer.zero_grad()
    if not outcome.applied:
        print(f"step {outcome.step} was skipped: {outcome.incident.causes[0].slug}")

guard.close()
print(f"all weights are finite: {all(bool(p.isfinite().all()) for p in model.parameters())}")
