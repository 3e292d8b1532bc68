"""Mixed precision on the CPU: float16 autocast and a GradScaler that starts high and finds its scale."""
import argparse
import csv

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def make_data(n=256):
    g = torch.Generator().manual_seed(6)
    x = torch.randn(n, 16, generator=g)
    y = (x[:, 0] * x[:, 1] > 0).long()
    return TensorDataset(x, y)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x):
        return self.net(x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--init-scale", type=float, default=2.0 ** 24)
    ap.add_argument("--clip", type=float, default=1.0)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Net()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=args.init_scale, growth_interval=20)
    loader = DataLoader(make_data(), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(0))
    rows, it = [], 0
    for epoch in range(args.epochs):
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.float16):
                logits = model(x)
                loss = nn.functional.cross_entropy(logits.float(), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            scaler.step(opt)
            scaler.update()
            rows.append([it, loss.item(), scaler.get_scale(), norm.item()])
            it += 1
        print(f"epoch {epoch} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")
    with open("amp.csv", "w", newline="") as f:
        w = csv.writer(f)
        w.writerow(["it", "loss", "scale", "grad_norm"])
        w.writerows(rows)
    torch.save({"model": model.state_dict(), "scaler": scaler.state_dict()}, "amp.pt")


if __name__ == "__main__":
    main()
