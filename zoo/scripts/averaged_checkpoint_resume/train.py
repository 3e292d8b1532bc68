"""Stage 1 trains and writes an averaged checkpoint of the last snapshots; stage 2 resumes from it and fine-tunes."""
import argparse
import glob
import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def data(seed, shift):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(256, 10, generator=g) + shift
    y = (x.sum(1) > 10 * shift).long()
    return TensorDataset(x, y)


def build():
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 2))


def fit(model, loader, epochs, lr, tag, snapshot_dir=None):
    opt = torch.optim.AdamW(model.parameters(), lr=lr)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for x, y in loader:
            opt.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            opt.step()
            total += loss.item()
        print(f"[{tag}] epoch {epoch} loss {total / len(loader):.4f}")
        if snapshot_dir:
            torch.save(model.state_dict(), os.path.join(snapshot_dir, f"epoch_{epoch:02d}.pt"))


def average_snapshots(folder, start_epoch, out):
    """Uniform average of all snapshots from `start_epoch` on."""
    paths = [p for p in sorted(glob.glob(os.path.join(folder, "epoch_*.pt")))
             if int(os.path.basename(p)[6:8]) >= start_epoch]
    template = torch.load(sorted(glob.glob(os.path.join(folder, "*.pt")))[0])
    avg = {k: torch.zeros_like(v, dtype=torch.float32) for k, v in template.items()}
    for p in paths:
        for k, v in torch.load(p).items():
            avg[k] += v.float()
    n = torch.tensor(float(len(paths)))
    avg = {k: (v / n).to(template[k].dtype) if template[k].is_floating_point() else template[k]
           for k, v in avg.items()}
    torch.save({"model": avg, "epoch": start_epoch}, out)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--average-from", type=int, default=4, help="first epoch of the average")
    ap.add_argument("--finetune-epochs", type=int, default=2)
    ap.add_argument("--dir", default="snapshots")
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    os.makedirs(args.dir, exist_ok=True)
    for old in glob.glob(os.path.join(args.dir, "*.pt")):
        os.remove(old)
    loader = DataLoader(data(1, 0.0), 32, shuffle=True, generator=torch.Generator().manual_seed(1))
    fit(build(), loader, args.epochs, 1e-3, "stage 1", args.dir)
    average_snapshots(args.dir, args.average_from, "averaged.pt")
    model = build()
    state = torch.load("averaged.pt")
    model.load_state_dict(state["model"])
    loader = DataLoader(data(2, 0.3), 32, shuffle=True, generator=torch.Generator().manual_seed(2))
    fit(model, loader, args.finetune_epochs, 1e-4, "stage 2")
    torch.save(model.state_dict(), "final.pt")


if __name__ == "__main__":
    main()
