"""Siamese network with contrastive loss on synthetic signatures; pairs are drawn from a list of files."""
import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class PairDataset(Dataset):
    def __init__(self, n_pairs, seed):
        rng = np.random.default_rng(seed)
        self.items = rng.normal(size=(40, 10)).astype(np.float32)
        self.items += np.repeat(rng.normal(size=(10, 10)), 4, axis=0).astype(np.float32) * 2
        self.label = np.repeat(np.arange(10), 4)
        self.pairs = []
        while len(self.pairs) < n_pairs:
            a, b = (int(v) for v in rng.integers(0, 40, 2))
            if a != b:
                self.pairs.append((a, b))
        self.pairs[150] = (17, 17)  # the list was made by hand and one file was paired with itself

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        a, b = self.pairs[i]
        return self.items[a], self.items[b], np.float32(self.label[a] == self.label[b])


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        return self.net(x)


class ContrastiveLoss(nn.Module):
    def __init__(self, margin=2.0):
        super().__init__()
        self.margin = margin

    def forward(self, za, zb, same):
        dist = (za - zb).pow(2).sum(1).sqrt()
        pos = same * dist.pow(2)
        neg = (1 - same) * torch.relu(self.margin - dist).pow(2)
        return (pos + neg).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--accum", type=int, default=2)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(PairDataset(320, 1), batch_size=16)
    model, criterion = Encoder(), ContrastiveLoss()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    step = 0
    for epoch in range(args.epochs):
        opt.zero_grad()
        for i, (a, b, same) in enumerate(loader):
            loss = criterion(model(a), model(b), same) / args.accum
            loss.backward()
            if (i + 1) % args.accum == 0:
                opt.step()
                opt.zero_grad()
                if step % 2 == 0:
                    print(f"epoch {epoch} step {step} loss {loss.item() * args.accum:.4f}")
                step += 1
    torch.save(model.state_dict(), "encoder.pt")


if __name__ == "__main__":
    main()
