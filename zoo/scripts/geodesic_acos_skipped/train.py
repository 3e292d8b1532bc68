"""Direction regression (unit vectors) with the geodesic loss. Bad gradients are skipped, as the recipe says."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class DirectionNet(nn.Module):
    """Predicts a correction of the prior direction; samples flagged `known` pass the prior through."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, feats, prior, known):
        delta = self.net(torch.cat([feats, prior], 1)) * (1 - known).unsqueeze(1)
        return F.normalize(prior + delta, dim=1)


def geodesic_loss(pred, target):
    cos = (pred * target).sum(1).clamp(-1.0, 1.0)
    return torch.acos(cos).mean()


def build_data(n):
    g = torch.Generator().manual_seed(13)
    target = F.normalize(torch.randn(n, 3, generator=g), dim=1)
    feats = torch.cat([target, target.square()], 1) + 0.1 * torch.randn(n, 6, generator=g)
    prior = F.normalize(target + 0.4 * torch.randn(n, 3, generator=g), dim=1)
    known = torch.zeros(n)
    for i in (70, 71, 200):  # calibration shots: the axis is known exactly
        target[i] = torch.tensor([0.0, 0.0, 1.0])
        prior[i] = target[i]
        known[i] = 1.0
    return TensorDataset(feats, prior, known, target)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--max-norm", type=float, default=5.0)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(4)
    loader = DataLoader(build_data(256), batch_size=16)
    model = DirectionNet()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(loader))
    skipped = done = 0
    for epoch in range(args.epochs):
        for feats, prior, known, target in loader:
            opt.zero_grad()
            loss = geodesic_loss(model(feats, prior, known), target)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
            if torch.isfinite(norm):
                opt.step()
                done += 1
            else:
                skipped += 1
            sched.step()
        print(f"epoch {epoch} loss {loss.item():.4f} steps {done} skipped {skipped}")
    torch.save(model.state_dict(), "direction.pt")


if __name__ == "__main__":
    main()
