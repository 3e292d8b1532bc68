"""The guard runs the whole step, so it can run it again: it replays the failure, proves the cause and names the sample.

Run it: python examples/attempt.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import nantrap

torch.manual_seed(0)
model = nn.MultiheadAttention(embed_dim=8, num_heads=2, batch_first=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
guard = nantrap.Guard(model, optimizer, max_grad_norm=1.0)


def loss_of(batch: dict[str, Tensor]) -> Tensor:
    """The loss of one batch: attention should give its input back."""
    output, _ = model(batch["x"], batch["x"], batch["x"], key_padding_mask=batch["padding"])
    return (output - batch["x"]).square().mean()


for step in range(10):
    x_BLD = torch.randn(4, 6, 8)
    padding_BL = torch.zeros(4, 6, dtype=torch.bool)
    if step == 4:
        padding_BL[2] = True  # sample 2 has no valid token at all
    outcome = guard.attempt(loss_of, {"x": x_BLD, "padding": padding_BL})
    if outcome.incident is not None:
        cause = outcome.incident.causes[0]
        print(f"step {outcome.step}: {cause.slug}, proven: {cause.proven}, samples: {outcome.incident.samples}")

guard.close()
