"""A decoder in half precision that adds three masks, each 0 or finfo(float16).min: causal, key padding, query padding. For
batches without padding all is well; batch 2 is left-padded, min + min is -inf on the whole first row, and its softmax is NaN. In fp32 the sum of two float16 minima is an ordinary number.
True cause: the addition of finite masks overflows in half."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class MaskSum(nn.Module):
    def forward(self, keep, dtype):
        low = torch.finfo(torch.float16).min
        n = keep.shape[1]
        causal = torch.zeros(n, n, dtype=dtype).masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), low)
        keys = torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, low)[:, None, :]
        queries = torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, low)[:, :, None]
        return causal[None] + keys + queries


class Block(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.qkv, self.proj, self.mask = nn.Linear(d, 3 * d), nn.Linear(d, d), MaskSum()

    def forward(self, x, keep):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        w = torch.softmax(scores + self.mask(keep, scores.dtype), dim=-1)
        return x + self.proj(w.to(v.dtype) @ v)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.blocks, self.head = nn.Embedding(30, 16), nn.ModuleList([Block(), Block()]), nn.Linear(16, 30)

    def forward(self, ids, keep):
        x = self.emb(ids)
        for b in self.blocks:
            x = b(x, keep)
        return self.head(x)


def build():
    torch.manual_seed(0)
    model = Decoder()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(5):
        ids = torch.randint(1, 30, (3, 8), generator=g)
        keep = torch.ones(3, 8, dtype=torch.bool)
        if i == 2:
            keep[1, :3] = False
        batches.append((ids, keep))

    def loss_fn(m, b):
        ids, keep = b
        logits = m(ids, keep).float()
        per = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        valid = (keep[:, 1:] & keep[:, :-1]).flatten()
        return per[valid].mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=torch.float16,
                truth=dict(cause="mask_overflow", module="blocks.0.mask", phase="forward", op="aten.add", first_bad_step=2))
