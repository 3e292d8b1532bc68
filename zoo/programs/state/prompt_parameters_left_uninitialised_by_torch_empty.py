"""Prompt tuning: a few learned vectors in front of a frozen encoder.

What goes wrong: the prompt is made with torch.empty and never initialised. The script asks for
deterministic algorithms, in which mode PyTorch fills uninitialised memory with NaN (without it, the
memory would hold whatever was there before).
Follows https://github.com/sauradip/STALE/issues/16.
True cause: the prompt parameter comes from torch.empty and is never initialised, so it holds NaN from the
start."""

import torch
import torch.nn.functional as F
from torch import nn


class PromptTuned(nn.Module):
    def __init__(self, n_prompt=4, d=16, classes=3):
        super().__init__()
        self.prompt = nn.Parameter(torch.empty(n_prompt, d))
        self.embed = nn.Embedding(60, d)
        self.encoder = nn.TransformerEncoderLayer(d, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(d, classes)
        self.embed.requires_grad_(False)
        self.encoder.requires_grad_(False)

    def forward(self, ids):
        x = self.embed(ids)
        p = self.prompt.expand(len(ids), -1, -1)
        h = self.encoder(torch.cat([p, x], dim=1))
        return self.head(h[:, 0])


def reproducible():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)


def build():
    reproducible()
    model = PromptTuned()
    torch.use_deterministic_algorithms(False)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-2)
    batches = []
    for _ in range(8):
        ids = torch.randint(0, 60, (8, 10))
        batches.append((ids, ids[:, 0] % 3))

    def loss_fn(model, batch):
        ids, y = batch
        return F.cross_entropy(model(ids), y)

    return dict(model=model, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="uninitialised_memory", also=("bad_initialisation",), first_bad_step=0, phase="state", module="loss",
                           op="aten.empty", also_op=("aten.cat",), param="prompt",
                           repair=("torch.empty(n_prompt, d)", "0.02 * torch.randn(n_prompt, d)")))
