"""A training script as people write them. `train.py OUT [BAD STEPS] [-- EPOCHS]` knows nothing of nantrap."""

import argparse
import json

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    """Sixty-four points; those whose numbers are given have a NaN in them."""

    def __init__(self, bad):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(64, 6, generator=generator)
        self.y = torch.randn(64, 3, generator=generator)
        for index in bad:
            self.x[index, 1] = float("nan")

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.drop(torch.relu(self.norm(self.body(x)))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--bad", type=int, nargs="*", default=[])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--shuffle", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(1)
    loader = DataLoader(Points(args.bad), batch_size=8, shuffle=args.shuffle)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=100)
    for epoch in range(args.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            print(f"epoch {epoch} loss {loss.item():.17g} lr {scheduler.get_last_lr()[0]:.17g}")
    finite = all(bool(value.isfinite().all()) for value in model.state_dict().values())
    print(json.dumps({"finite": finite, "drawn": torch.rand(()).item(), "updates": scheduler.last_epoch}))
    if args.out:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "net": model}, args.out)


if __name__ == "__main__":
    main()
