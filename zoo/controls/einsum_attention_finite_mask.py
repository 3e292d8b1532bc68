"""Sentiment classifier with hand-written einsum attention; the padding mask is -1e9, so that a sentence
of padding only gives uniform weights instead of NaN.

Healthy twin of einsum_attention_query_sees_only_padding.py."""

import torch
import torch.nn.functional as F
from torch import nn

PAD, VOCAB = 0, 50


class SelfAttention(nn.Module):
    def __init__(self, d, heads=2):
        super().__init__()
        self.heads, self.dk = heads, d // heads
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)

    def forward(self, x, pad):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, self.dk).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / self.dk ** 0.5
        scores = scores.masked_fill(pad[:, None, None, :], -1e9)
        weights = scores.softmax(dim=-1)
        return self.proj(torch.einsum("bhqk,bkhd->bqhd", weights, v).reshape(b, n, d))


class Classifier(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d, padding_idx=PAD)
        self.attn = SelfAttention(d)
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 2)

    def forward(self, ids):
        x = self.emb(ids)
        x = self.norm(x + self.attn(x, ids == PAD))
        return self.out(x.mean(1))


def sentences():
    g = torch.Generator().manual_seed(2)
    for step in range(12):
        ids = torch.randint(1, VOCAB, (8, 10), generator=g)
        length = torch.randint(2, 11, (8,), generator=g)
        if step == 5:
            length[6] = 0  # "???" after the cleaning
        ids[torch.arange(10) >= length[:, None]] = PAD
        yield ids, (ids[:, 0] % 2)


def build():
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return dict(model=model, optimizer=optimizer, batches=list(sentences()), steps=12, loss_fn=lambda model,
                batch: F.cross_entropy(model(batch[0]), batch[1]), autocast_dtype=None,
                truth=dict(cause="benign", first_bad_step=None))
