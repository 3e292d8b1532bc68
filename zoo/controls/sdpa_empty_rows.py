"""CONTROL: retrieval-augmented reader with scaled_dot_product_attention and a boolean mask; some queries have no document at all. PyTorch's
SDPA returns 0 for a fully masked row, and so are its gradients; the residual carries the query on."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class CrossAttention(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)

    def forward(self, x, docs, allowed):
        k, v = self.kv(docs).chunk(2, -1)
        a = F.scaled_dot_product_attention(self.q(x)[:, None], k[:, None], v[:, None], attn_mask=allowed[:, None])
        return x + self.o(a[:, 0])


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(30, 16)
        self.read, self.head = CrossAttention(), nn.Linear(16, 30)

    def forward(self, ids, docs, allowed):
        return self.head(self.read(self.emb(ids), self.emb(docs), allowed))


def build():
    torch.manual_seed(0)
    model = Reader()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(6):
        allowed = torch.rand(3, 5, 8, generator=g) < 0.6
        allowed[1, 2:] = False
        if i == 3:
            allowed[:] = False
        batches.append((torch.randint(0, 30, (3, 5), generator=g), torch.randint(0, 30, (3, 8), generator=g), allowed))

    def loss_fn(m, b):
        return F.cross_entropy(m(*b).flatten(0, 1), b[0].flatten())

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
