"""CONTROL: attention in tiles with a running maximum that starts at -inf. A tile without any allowed key leaves it there; the update replaces an infinite maximum by zero
before it subtracts, so no difference of two infinities is formed, and queries without any key get zeros.
After https://github.com/flashinfer-ai/flashinfer/pull/4401 (every exponent difference is guarded, so that fully masked rows map to exp(-inf) = 0)."""
import torch
from torch import nn


class TiledAttention(nn.Module):
    def __init__(self, d=12, tile=4):
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.tile = tile

    def forward(self, x, allowed):
        q, (k, v) = self.q(x), self.kv(x).chunk(2, -1)
        top = x.new_full((*x.shape[:2], 1), float("-inf"))
        total, out = torch.zeros_like(top), torch.zeros_like(v)
        for start in range(0, x.shape[1], self.tile):
            s = slice(start, start + self.tile)
            scores = (q @ k[:, s].transpose(1, 2) / x.shape[-1] ** 0.5).masked_fill(~allowed[:, s], float("-inf"))
            new = torch.maximum(top, scores.detach().amax(-1, keepdim=True))
            shift = torch.where(new.isinf(), torch.zeros_like(new), new)
            weights, keep = torch.exp(scores - shift), torch.exp(top - shift)
            total, out, top = keep * total + weights.sum(-1, keepdim=True), keep * out + weights @ v[:, s], new
        return self.o(out / total.clamp(min=1e-20))


class Encoder(nn.Module):
    def __init__(self, vocab=14, d=12):
        super().__init__()
        self.emb, self.attn, self.head = nn.Embedding(vocab, d), TiledAttention(d), nn.Linear(d, vocab)

    def forward(self, ids, allowed):
        h = self.emb(ids)
        return self.head(h + self.attn(h, allowed))


def build():
    torch.manual_seed(0)
    model = Encoder()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(3)
    age = torch.arange(12)[:, None] - torch.arange(12)
    masks = [(age >= 0), (age >= 0) & (age < 3), (age > 0), (age.abs() < 2)]
    batches = [(torch.randint(0, 14, (3, 12), generator=g), mask, torch.randint(0, 14, (3, 12), generator=g)) for mask in masks]

    def loss_fn(m, b):
        return nn.functional.cross_entropy(m(b[0], b[1]).flatten(0, 1), b[2].flatten())

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
