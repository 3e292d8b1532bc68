"""House prices from a CSV file. The file is written first so that the example is self-contained."""
import argparse
import csv
import random

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, random_split

COLUMNS = ["rooms", "area", "age", "distance", "price"]


def write_csv(path, n=400):
    rng = random.Random(77)
    with open(path, "w", newline="") as f:
        w = csv.writer(f)
        w.writerow(COLUMNS)
        for i in range(n):
            rooms, area = rng.randint(1, 7), rng.uniform(30, 220)
            age, dist = rng.uniform(0, 90), rng.uniform(0.2, 25)
            price = 40 + 2.1 * area + 9 * rooms - 0.5 * age - 1.5 * dist + rng.gauss(0, 12)
            row = [rooms, f"{area:.1f}", f"{age:.1f}", f"{dist:.2f}", f"{price:.1f}"]
            if i == 213:
                row[2] = ""  # year of construction unknown
            w.writerow(row)


class Houses(Dataset):
    def __init__(self, path):
        table = np.genfromtxt(path, delimiter=",", skip_header=1, dtype=np.float32)
        self.x, self.y = table[:, :-1], table[:, -1:]
        self.mean, self.std = np.nanmean(self.x, 0), np.nanstd(self.x, 0)
        self.y = (self.y - self.y.mean()) / self.y.std()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.from_numpy((self.x[i] - self.mean) / self.std), torch.from_numpy(self.y[i])


def train_one_epoch(model, loader, opt):
    model.train()
    losses = []
    for x, y in loader:
        opt.zero_grad()
        loss = nn.functional.smooth_l1_loss(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return float(np.mean(losses))


@torch.no_grad()
def test(model, loader):
    model.eval()
    return float(np.mean([nn.functional.l1_loss(model(x), y).item() for x, y in loader]))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--csv", default="houses.csv")
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch-size", type=int, default=32)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(9)
    write_csv(args.csv)
    data = Houses(args.csv)
    train, val = random_split(data, [320, 80], generator=torch.Generator().manual_seed(1))
    train_loader = DataLoader(train, args.batch_size, shuffle=True, generator=torch.Generator().manual_seed(2))
    val_loader = DataLoader(val, args.batch_size)
    model = nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=1)
    for epoch in range(args.epochs):
        tr, va = train_one_epoch(model, train_loader, opt), test(model, val_loader)
        sched.step(va)
        print(f"epoch {epoch}: train {tr:.4f} val mae {va:.4f}")
    torch.save(model.state_dict(), "houses.pt")


if __name__ == "__main__":
    main()
