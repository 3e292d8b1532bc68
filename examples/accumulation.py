"""Gradient accumulation: a bad micro-batch is dropped, and the step is made of the good ones.

Run it: python examples/accumulation.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import nantrap

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
guard = nantrap.Guard(model, optimizer, policy=nantrap.Policy(accumulation=nantrap.Accumulation(bad="drop")))


def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean squared error of one micro-batch."""
    inputs, target = batch
    return nn.functional.mse_loss(model(inputs), target)


for step in range(6):
    micro_batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(4)]
    if step == 3:
        micro_batches[1][0][5, 2] = float("nan")
    outcome = guard.attempt(loss_of, *micro_batches)  # each loss is divided by the number of micro-batches
    print(f"step {outcome.step}: applied {outcome.applied}")

print(f"dropped micro-batches: {guard.tally.dropped_micro_batches}")
guard.close()
