"""Count regression with an entropy penalty; zeros are kept out of the logarithms with the double-where trick."""
import argparse
import json

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def safe_log(x):
    ok = x > 0
    return torch.where(ok, torch.log(torch.where(ok, x, torch.ones_like(x))), torch.zeros_like(x))


def poisson_deviance(rate, count):
    """2 * (y log(y / mu) - (y - mu)); the first term is zero for y = 0."""
    with torch.no_grad():
        raw = torch.log(count)  # -inf for zero counts, selected away below
        ylogy = torch.where(count > 0, count * raw, torch.zeros_like(count))
    return 2 * (ylogy - count * torch.log(rate) - (count - rate)).mean()


class Gate(nn.Module):
    """Sparse gate: relu makes exact zeros."""

    def __init__(self, dim):
        super().__init__()
        self.fc = nn.Linear(dim, dim)

    def forward(self, x):
        g = torch.relu(self.fc(x)) + 0.0
        return g / (g.sum(1, keepdim=True) + 1e-6)


class CountNet(nn.Module):
    def __init__(self, dim=12):
        super().__init__()
        self.gate = Gate(dim)
        self.out = nn.Sequential(nn.Linear(dim, 32), nn.SiLU(), nn.Linear(32, 1), nn.Softplus())

    def forward(self, x):
        p = self.gate(x)
        return self.out(p * x).squeeze(-1) + 1e-4, p


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--entropy", type=float, default=0.01)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(7)
    x = torch.randn(320, 12, generator=g)
    y = torch.poisson((0.6 * x[:, 0]).exp(), generator=g)
    x[40] = 0.0
    loader = DataLoader(TensorDataset(x, y), 32, shuffle=True, generator=torch.Generator().manual_seed(5))
    model = CountNet()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    log = []
    for epoch in range(args.epochs):
        zeros = 0
        for xb, yb in loader:
            rate, p = model(xb)
            entropy = -(p * safe_log(p)).sum(1).mean()
            loss = poisson_deviance(rate, yb) + args.entropy * entropy
            opt.zero_grad()
            loss.backward()
            opt.step()
            zeros += int((p == 0).sum())
        log.append({"epoch": epoch, "loss": loss.item(), "zeros": zeros})
        print(log[-1])
    with open("counts.json", "w") as f:
        json.dump(log, f)


if __name__ == "__main__":
    main()
