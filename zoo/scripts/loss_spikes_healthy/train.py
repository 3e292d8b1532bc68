"""Robust regression with rare outliers: the loss jumps by orders of magnitude and comes back every time."""
import argparse
import csv

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class HeavyTailed(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(14)
        self.x = torch.randn(n, 8, generator=g)
        self.y = self.x @ torch.randn(8, generator=g) + 0.1 * torch.randn(n, generator=g)
        self.y[::97] += 3000.0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class EMA:
    def __init__(self, model, decay=0.98):
        self.decay = decay
        self.shadow = {k: v.clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        for k, v in model.state_dict().items():
            self.shadow[k].lerp_(v, 1 - self.decay)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--clip", type=float, default=0.5)
    ap.add_argument("--accum", type=int, default=2)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    ema = EMA(model)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 10)
    loader = DataLoader(HeavyTailed(512), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(2))
    rows, worst, best = [], 0.0, float("inf")
    for epoch in range(args.epochs):
        opt.zero_grad()
        for i, (x, y) in enumerate(loader):
            loss = (model(x).squeeze(-1) - y).square().mean()
            (loss / args.accum).backward()
            if (i + 1) % args.accum == 0:
                norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
                opt.step()
                opt.zero_grad()
                sched.step()
                ema.update(model)
                rows.append([epoch, i, loss.item(), norm.item(), sched.get_last_lr()[0]])
            worst, best = max(worst, loss.item()), min(best, loss.item())
        print(f"epoch {epoch} last {loss.item():.4g} best {best:.4g} worst {worst:.4g}")
    torch.save({"model": model.state_dict(), "ema": ema.shadow}, "robust.pt")
    with open("robust.csv", "w", newline="") as f:
        csv.writer(f).writerows([["epoch", "batch", "loss", "grad_norm", "lr"], *rows])


if __name__ == "__main__":
    main()
