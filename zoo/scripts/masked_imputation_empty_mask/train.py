"""Masked autoencoding of time series: random spans are hidden and reconstructed; the mask ratio is per series."""
import argparse
import json

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Series(Dataset):
    def __init__(self, n, length=24, ratio=0.3, seed=0):
        rng = np.random.default_rng(seed)
        t = np.arange(length)
        phase, freq = rng.uniform(0, 6, (n, 1)), rng.uniform(0.2, 0.6, (n, 1))
        self.x = np.sin(freq * t + phase).astype(np.float32)
        self.observed = np.ones((n, length), bool)
        for i in range(n):
            missing = rng.integers(0, 6)
            self.observed[i, rng.permutation(length)[:missing]] = False
        self.observed[141] = False  # the sensor never reported
        self.hidden = (rng.random((n, length)) < ratio)
        self.hidden[:, 5] = True
        self.observed[:, 5] |= np.arange(n) != 141

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        target_mask = self.hidden[i] & self.observed[i]
        visible = self.observed[i] & ~self.hidden[i]
        return self.x[i] * visible, visible.astype(np.float32), self.x[i], target_mask.astype(np.float32)


class Imputer(nn.Module):
    def __init__(self, length=24, hidden=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2 * length, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(),
                                 nn.Linear(hidden, length))

    def forward(self, x, visible):
        return self.net(torch.cat([x, visible], 1))


class MaskedLoss(nn.Module):
    """Mean squared error per series over the hidden points, then the mean over the batch."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, pred, target, mask):
        self.calls += 1
        per_series = ((pred - target).square() * mask).sum(1) / mask.sum(1)
        return per_series.mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--clip", type=float, default=1.0)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(Series(240), args.batch_size)
    model, criterion = Imputer(), MaskedLoss()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, 10)
    log = []
    for epoch in range(args.epochs):
        total = 0.0
        for x, visible, target, mask in loader:
            loss = criterion(model(x, visible), target, mask)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            opt.step()
            sched.step()
            total += loss.item()
        log.append({"epoch": epoch, "loss": total / len(loader), "calls": criterion.calls})
        print(log[-1])
    with open("imputer.json", "w") as f:
        json.dump(log, f)


if __name__ == "__main__":
    main()
