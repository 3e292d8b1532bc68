"""Copy task with an additive -inf causal and padding mask; every query can see at least the first token."""
import argparse
import csv

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS, VOCAB = 0, 1, 20


def batch(n, length, g):
    ids = torch.randint(2, VOCAB, (n, length), generator=g)
    ids[:, 0] = BOS
    lens = torch.randint(3, length + 1, (n,), generator=g)
    ids[torch.arange(length)[None] >= lens[:, None]] = PAD
    return ids


def build_mask(ids):
    T = ids.size(1)
    causal = torch.full((T, T), float("-inf")).triu(1)
    pad = torch.zeros(ids.shape).masked_fill(ids == PAD, float("-inf"))
    return causal[None, None] + pad[:, None, None, :]


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, mask):
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (C // self.heads) ** 0.5
        att = torch.softmax(scores + mask, dim=-1)
        x = x + self.proj((att @ v).transpose(1, 2).reshape(B, T, C))
        return x + self.ff(self.norm2(x))


class Model(nn.Module):
    def __init__(self, dim=32, heads=4, layers=2, length=12):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, dim, padding_idx=PAD), nn.Embedding(length, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(layers))
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        mask = build_mask(ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.out(x).masked_fill(torch.arange(VOCAB) == PAD, float("-inf"))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    model = Model()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=args.lr, total_steps=args.steps)
    best = float("inf")
    with open("copy.csv", "w", newline="") as f:
        w = csv.writer(f)
        for step in range(args.steps):
            ids = batch(16, 12, g)
            logits = model(ids)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            best = min(best, loss.item())
            w.writerow([step, loss.item(), best])
    print("final", loss.item(), "best", best)


if __name__ == "__main__":
    main()
