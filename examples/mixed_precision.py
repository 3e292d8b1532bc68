"""Mixed precision with a GradScaler: the guard unscales, checks, clips, steps and updates in the right order.

While the scaler searches its scale it leaves steps out; that is normal and no incident. The activation that float16
cannot hold at step 6 is one.

Run it: python examples/mixed_precision.py
"""

from __future__ import annotations

import torch
from torch import nn

import nantrap

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
guard = nantrap.Guard(model, optimizer, scaler=scaler, max_grad_norm=1.0)

for step in range(12):
    inputs, target = torch.randn(16, 8), torch.randn(16, 1)
    if step == 6:
        inputs *= 1e6  # above 65504, the largest value of float16
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(inputs).float(), target)
    guard.backward(loss)  # was: scaler.scale(loss).backward()
    outcome = guard.step()  # was: scaler.unscale_, clip, scaler.step, scaler.update, optimizer.zero_grad()
    if outcome.incident is not None:
        print(f"step {outcome.step} was skipped: {outcome.incident.causes[0].slug}")

guard.close()
print(f"loss scale: {scaler.get_scale():g}")
