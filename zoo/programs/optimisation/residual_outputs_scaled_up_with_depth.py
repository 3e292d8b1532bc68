"""A deep decoder scales the initial weights of its residual outputs by the root of twice the depth. The formula multiplies where it should divide; without a norm in the
residual stream the activations overflow in the first forward pass.
After https://github.com/NVIDIA/TransformerEngine/issues/962 (NaN in the first batch; the training is highly sensitive to the initialisation).
True cause: a wrong initialisation."""
import math

import torch
from torch import nn


class GatedBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gate, self.up, self.out_proj = nn.Linear(d, 2 * d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.out_proj(torch.sigmoid(self.gate(x)) * self.up(x))


class DeepDecoder(nn.Module):
    def __init__(self, depth=48, d=12, vocab=9):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.Sequential(*(GatedBlock(d) for _ in range(depth)))
        self.head = nn.Linear(d, vocab)
        self.apply(self._init)
        for name, p in self.named_parameters():
            if name.endswith("out_proj.weight"):
                nn.init.normal_(p, std=0.2 * math.sqrt(2 * depth))

    @staticmethod
    def _init(module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.3)
            nn.init.zeros_(module.bias)

    def forward(self, ids):
        return self.head(self.blocks(self.emb(ids)))


def build():
    torch.manual_seed(0)
    model = DeepDecoder()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 9, (4, 8), generator=g) for _ in range(2)]

    def loss_fn(m, ids):
        return nn.functional.cross_entropy(m(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="bad_initialisation", module="blocks.45.out_proj", phase="forward", op="aten.addmm", first_bad_step=0,
                           why="divided by the root of twice the depth, the activations stay near one"))
