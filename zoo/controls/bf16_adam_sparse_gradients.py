"""CONTROL: a pure bfloat16 model with plain Adam (eps 1e-8 is a normal bfloat16 number). Most embedding rows get a gradient of exactly 0, a part
of the model is frozen, and one batch has weight 0, so its loss and gradients are exactly 0."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(200, 12)
        self.frozen = nn.Linear(12, 12).requires_grad_(False)
        self.out = nn.Linear(12, 5)

    def forward(self, ids):
        return self.out(torch.relu(self.frozen(self.emb(ids))))


def build():
    torch.manual_seed(0)
    model = Tagger().to(torch.bfloat16)
    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(0, 200, (2, 6), generator=g), torch.randint(0, 5, (2, 6), generator=g), 0.0 if i == 4 else 1.0) for i in range(8)]

    def loss_fn(m, b):
        return b[2] * F.cross_entropy(m(b[0]).float().flatten(0, 1), b[1].flatten())

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
