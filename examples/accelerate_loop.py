"""One line guards an Accelerate loop. A loss of 0/0 in one batch is skipped, and the schedule does not advance for it.

Run it: python examples/accelerate_loop.py   (needs nantrap[accelerate])
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nantrap.accelerate

torch.manual_seed(0)
inputs = torch.randn(40, 4)
weight = torch.ones(40)
weight[16:24] = 0.0  # every weight of one batch is 0: its weighted mean is 0/0
data = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True), weight), batch_size=8)
model = nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)

accelerator = nantrap.accelerate.guard(Accelerator(cpu=True))  # was: accelerator = Accelerator(cpu=True)
model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
for x, y, w in data:
    loss = (w * (model(x) - y).square().mean(dim=1)).sum() / w.sum()
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    if accelerator.optimizer_step_was_skipped:
        print("a step was skipped")

accelerator.end_training()
print(f"learning rate after 4 of 5 steps: {schedule.get_last_lr()[0]:.6f}")
