"""Multi-task regression (like Tox21): missing targets are NaN in the table and are masked before the loss."""
import argparse
import json

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Assays(Dataset):
    def __init__(self, path):
        data = np.load(path)
        self.x, self.y = data["x"], data["y"]

    @staticmethod
    def write(path, n=300, tasks=5):
        rng = np.random.default_rng(4)
        x = rng.normal(size=(n, 20)).astype(np.float32)
        y = (x @ rng.normal(size=(20, tasks)) / 4).astype(np.float32)
        y[rng.random((n, tasks)) < 0.6] = np.nan
        y[5] = np.nan  # nothing was measured for this compound
        np.savez(path, x=x, y=y)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class MaskedMSE(nn.Module):
    def forward(self, pred, target):
        mask = ~torch.isnan(target)
        diff = torch.where(mask, pred - torch.nan_to_num(target), torch.zeros_like(pred))
        return diff.square().sum() / mask.sum().clamp(min=1)


class MultiTask(nn.Module):
    def __init__(self, tasks=5):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1))
        self.heads = nn.ModuleList(nn.Linear(64, 1) for _ in range(tasks))

    def forward(self, x):
        h = self.shared(x)
        return torch.cat([head(h) for head in self.heads], 1)


@torch.no_grad()
def per_task_rmse(model, loader):
    model.eval()
    pred = torch.cat([model(x) for x, _ in loader]).numpy()
    target = torch.cat([y for _, y in loader]).numpy()
    model.train()
    return np.sqrt(np.nanmean((pred - target) ** 2, axis=0))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    Assays.write("assays.npz")
    data = Assays("assays.npz")
    loader = DataLoader(data, batch_size=30, shuffle=True, generator=torch.Generator().manual_seed(0))
    fixed = DataLoader(data, batch_size=100)
    model, criterion = MultiTask(), MaskedMSE()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    log = []
    for epoch in range(args.epochs):
        total = 0.0
        for x, y in loader:
            loss = criterion(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        rmse = per_task_rmse(model, fixed)
        log.append({"epoch": epoch, "loss": total / len(loader), "rmse": [round(float(v), 4) for v in rmse]})
        print(log[-1])
    with open("assays.json", "w") as f:
        json.dump(log, f)


if __name__ == "__main__":
    main()
