"""Encoder in float16 autocast; key and query padding masks are both written with finfo.min and added."""
import argparse
import json

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Documents(Dataset):
    """Token ids with padding at the end. Two documents were empty after tokenisation."""

    def __init__(self, n, length=12):
        g = torch.Generator().manual_seed(23)
        self.ids = torch.randint(1, 40, (n, length), generator=g)
        lens = torch.randint(4, length + 1, (n, 1), generator=g)
        self.y = (self.ids[:, 0] % 2).long()
        self.ids[torch.arange(length)[None] >= lens] = 0
        for i in (88, 89):
            self.ids[i] = 0

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i], self.y[i]


def additive(allowed, dtype):
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)


class PaddedAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, key_bias, query_bias):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / q.size(-1) ** 0.5
        bias = key_bias + query_bias
        weights = torch.softmax((scores + bias).to(torch.float32), dim=-1).to(v.dtype)
        return self.out(weights @ v)


class Encoder(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.emb = nn.Embedding(40, dim)
        self.attn = PaddedAttention(dim)
        self.cls = nn.Linear(dim, 2)

    def forward(self, ids, dtype):
        keys = additive((ids != 0)[:, None, :], dtype)
        queries = additive((ids != 0)[:, :, None], dtype)
        x = self.emb(ids)
        x = x + self.attn(x, keys, queries)
        return self.cls(x[:, 0])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Encoder()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = DataLoader(Documents(160), batch_size=8)
    history = []
    for epoch in range(args.epochs):
        for ids, y in loader:
            with torch.autocast("cpu", dtype=torch.float16):
                logits = model(ids, torch.float16)
            loss = nn.functional.cross_entropy(logits.float(), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            history.append(loss.item())
        print(f"epoch {epoch} loss {history[-1]:.4f}")
    with open("history.json", "w") as f:
        json.dump(history, f)


if __name__ == "__main__":
    main()
