"""Regression on tabular data with an exponentially decayed rate; trains, is interrupted, and resumes."""
import argparse
import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def dataset():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(512, 12, generator=g)
    w = torch.randn(12, generator=g)
    y = torch.tanh(x @ w) + 0.1 * torch.randn(512, generator=g)
    return TensorDataset(x, y)


def build():
    return nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


def make_scheduler(optimizer, gamma, offset):
    """Exponential decay in optimiser steps, counted from `offset`."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: gamma ** (s - offset))


def run(args, resume):
    torch.manual_seed(5)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    step = 0
    if resume:
        ckpt = torch.load(args.ckpt)
        model.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] = args.lr
    scheduler = make_scheduler(optimizer, args.gamma, offset=step)
    loader = DataLoader(dataset(), batch_size=64, shuffle=True, generator=torch.Generator().manual_seed(step))
    for epoch in range(args.epochs):
        total = 0.0
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x).squeeze(-1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            total += loss.item()
        print(f"epoch {epoch} step {step} loss {total / len(loader):.5g} lr {scheduler.get_last_lr()[0]:.3g}")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, args.ckpt)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--gamma", type=float, default=0.94)
    ap.add_argument("--epochs", type=int, default=10)
    ap.add_argument("--ckpt", default="last.pt")
    args = ap.parse_args()
    torch.set_num_threads(1)
    if os.path.exists(args.ckpt):
        os.remove(args.ckpt)
    run(args, resume=False)
    print("interrupted, resuming from", args.ckpt)
    run(args, resume=True)


if __name__ == "__main__":
    main()
