"""Binary segmentation with a small U-Net. The masks come from PNG-like arrays (an npz file written first)."""
import argparse
import csv

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


def write_npz(path, n=96, size=16):
    rng = np.random.default_rng(10)
    yy, xx = np.mgrid[:size, :size]
    images = np.zeros((n, size, size), np.uint8)
    masks = np.zeros((n, size, size), np.uint8)
    for i in range(n):
        cy, cx, r = rng.integers(4, 12), rng.integers(4, 12), rng.integers(2, 5)
        disk = (yy - cy) ** 2 + (xx - cx) ** 2 <= r * r
        images[i] = np.clip(60 + 120 * disk + rng.normal(0, 20, (size, size)), 0, 255)
        masks[i][disk] = 255
    np.savez(path, images=images, masks=masks)


class Cells(Dataset):
    def __init__(self, path):
        data = np.load(path)
        self.images, self.masks = data["images"], data["masks"]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = torch.from_numpy(self.images[i].astype(np.float32) / 255.0 - 0.5)
        mask = torch.from_numpy(self.masks[i].astype(np.float32))
        return image[None], mask[None]


def conv(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.LeakyReLU(0.1),
                         nn.Conv2d(cout, cout, 3, padding=1), nn.LeakyReLU(0.1))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = conv(1, 8), conv(8, 16)
        self.pool, self.up = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
        self.dec, self.out = conv(24, 8), nn.Conv2d(8, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(self.pool(a))
        return self.out(self.dec(torch.cat([a, self.up(b)], 1)))


def dice(model, loader):
    model.eval()
    num = den = 0.0
    with torch.no_grad():
        for x, m in loader:
            p, t = (model(x) > 0).float(), (m > 0).float()
            num, den = num + 2 * (p * t).sum().item(), den + (p.sum() + t.sum()).item()
    model.train()
    return num / max(den, 1.0)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--momentum", type=float, default=0.9)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    write_npz("cells.npz")
    data = Cells("cells.npz")
    loader = DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0))
    model, loss_fn = UNet(), nn.BCEWithLogitsLoss()
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    rows = []
    for epoch in range(args.epochs):
        for x, m in loader:
            loss = loss_fn(model(x), m)
            opt.zero_grad()
            loss.backward()
            opt.step()
            rows.append([epoch, loss.item()])
        print(f"epoch {epoch} loss {loss.item():.4g} dice {dice(model, loader):.3f}")
    with open("unet.csv", "w", newline="") as f:
        csv.writer(f).writerows(rows)


if __name__ == "__main__":
    main()
