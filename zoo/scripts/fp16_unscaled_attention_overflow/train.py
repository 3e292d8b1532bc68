"""Sequence tagging with a home-made attention layer under float16 autocast (CPU)."""
import argparse
import json

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Readings(Dataset):
    """Sensor sequences; the last third of the file comes from a device with a higher gain."""

    def __init__(self, n, length=12, dim=16):
        g = torch.Generator().manual_seed(17)
        self.x = torch.randn(n, length, dim, generator=g)
        self.y = (self.x.mean(2) > 0).long()
        self.x[2 * n // 3:] *= 120.0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.proj = nn.Linear(dim, dim)
        for lin in (self.q, self.k):
            nn.init.orthogonal_(lin.weight)
        self.k.weight.data.copy_(self.q.weight.data)

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        return self.proj(scores.softmax(-1) @ self.v(x))


class Tagger(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.attn = Attention(dim)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2))

    def forward(self, x):
        return self.head(x + self.attn(x))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--dtype", default="float16", choices=["float16", "bfloat16", "float32"])
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dtype = getattr(torch, args.dtype)
    model = Tagger()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(Readings(192), batch_size=16)
    log = []
    for epoch in range(args.epochs):
        for i, (x, y) in enumerate(loader):
            with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                logits = model(x)
            loss = criterion(logits.float().flatten(0, 1), y.flatten())
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            log.append({"epoch": epoch, "batch": i, "loss": loss.item()})
        print(f"epoch {epoch} last loss {loss.item():.4f}")
    with open("log.json", "w") as f:
        json.dump(log, f)


if __name__ == "__main__":
    main()
