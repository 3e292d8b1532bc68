"""An empty text leaves a row of attention without a key. The loss of the step is finite, and its gradients are NaN.

Run it: python examples/masked_row.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

import nantrap


class Attention(nn.Module):
    """One attention layer over token ids, with a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 50)

    def forward(self, tokens_BL: Tensor, keep_BL: Tensor) -> Tensor:
        """The logits of every position."""
        q, k, v = self.qkv(self.embed(tokens_BL)).chunk(3, dim=-1)
        scores_BLL = (q @ k.transpose(1, 2) / 4.0).masked_fill(~keep_BL[:, None, :], float("-inf"))
        logits_BLV: Tensor = self.out(scores_BLL.softmax(dim=-1) @ v)
        return logits_BLV


torch.manual_seed(0)
model = Attention()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
guard = nantrap.Guard(model, optimizer, max_grad_norm=1.0)


def loss_of(batch: dict[str, Tensor]) -> Tensor:
    """The cross-entropy of the positions that hold a token: the NaN of an empty text is not among them."""
    logits = model(batch["tokens"], batch["keep"])
    return functional.cross_entropy(logits[batch["keep"]], batch["next"][batch["keep"]])


for step in range(6):
    tokens = torch.randint(0, 50, (4, 7))
    lengths = torch.randint(2, 8, (4,))
    if step == 3:
        lengths[2] = 0  # an empty text
    keep = torch.arange(7) < lengths[:, None]
    outcome = guard.attempt(loss_of, {"tokens": tokens, "keep": keep, "next": tokens.roll(-1, 1)})
    if not outcome.applied:
        print(f"step {outcome.step} was skipped; its loss was {outcome.loss:.3f}")

guard.close()
