"""Point-cloud part labelling; one class does not occur in the validation set, so its IoU is NaN and only logged."""
import argparse
import json

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

NAMES = ["floor", "wall", "chair", "lamp"]


def clouds(n, seed, lamps):
    rng = np.random.default_rng(seed)
    pts = rng.uniform(-1, 1, (n, 32, 3)).astype(np.float32)
    lab = np.where(pts[..., 2] < -0.3, 0, np.where(np.abs(pts[..., 0]) > 0.7, 1, 2))
    if lamps:
        lab[pts[..., 2] > 0.8] = 3
    return TensorDataset(torch.from_numpy(pts), torch.from_numpy(lab.astype(np.int64)))


class PointNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, x):
        h = self.local(x)
        pooled = h.max(1, keepdim=True).values.expand_as(h)
        return self.head(torch.cat([h, pooled], -1))


class IoUMeter:
    def __init__(self, classes):
        self.conf = np.zeros((classes, classes))

    def update(self, pred, target):
        np.add.at(self.conf, (target.numpy().ravel(), pred.numpy().ravel()), 1)

    def compute(self):
        inter = np.diag(self.conf)
        union = self.conf.sum(0) + self.conf.sum(1) - inter
        with np.errstate(invalid="ignore"):
            iou = inter / union
        return iou, float(np.nanmean(iou))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    meter = IoUMeter(len(NAMES))
    for x, y in loader:
        logits = model(x)
        logits[..., 3] = -float("inf")  # no lamps at this site
        meter.update(logits.argmax(-1), y)
    model.train()
    return meter.compute()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train = DataLoader(clouds(160, 1, True), 16, shuffle=True, generator=torch.Generator().manual_seed(1))
    val = DataLoader(clouds(48, 2, False), 16)
    model = PointNet(len(NAMES))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    best, log = -float("inf"), []
    for epoch in range(args.epochs):
        for x, y in train:
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
        iou, miou = evaluate(model, val)
        log.append({"epoch": epoch, "loss": loss.item(), "miou": miou,
                    **{n: (None if np.isnan(v) else float(v)) for n, v in zip(NAMES, iou)}})
        print(f"epoch {epoch} loss {loss.item():.4f} mIoU {miou:.4f} " + " ".join(f"{n}={v:.3f}" for n, v in zip(NAMES, iou)))
        if miou > best:
            best = miou
            torch.save(model.state_dict(), "best.pt")
    with open("iou.json", "w") as f:
        json.dump(log, f)


if __name__ == "__main__":
    main()
