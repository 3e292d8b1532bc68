"""Small autoencoder with an exponential moving average (bias-corrected, as in EDM2 recipes) used for evaluation."""
import argparse
import copy
import csv

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class EMA:
    """Starts at zero and is divided by 1 - decay**t, where t counts the updates after the warm-up."""

    def __init__(self, model, decay=0.95, warmup=8):
        self.decay, self.warmup, self.t = decay, warmup, 0
        self.sum = [torch.zeros_like(p) for p in model.parameters()]
        self.module = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model, step):
        if step >= self.warmup:
            for s, p in zip(self.sum, model.parameters()):
                s.mul_(self.decay).add_(p, alpha=1 - self.decay)
            self.t += 1
        elif step < self.warmup // 2:
            return
        correction = 1 - self.decay ** self.t
        for e, s in zip(self.module.parameters(), self.sum):
            e.copy_(s / correction)

    def state_dict(self):
        return {"module": self.module.state_dict(), "t": self.t}


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 4))
        self.dec = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 20))

    def forward(self, x):
        return self.dec(self.enc(x))


def make_data():
    g = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(256, 4, generator=g) @ torch.randn(4, 20, generator=g) / 2)


@torch.no_grad()
def reconstruction_error(model, x):
    model.eval()
    err = (model(x) - x).square().mean().item()
    model.train()
    return err


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--eval-every", type=int, default=6)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = make_data()
    held_out = data.tensors[0][:32]
    loader = DataLoader(data, 32, shuffle=True, generator=torch.Generator().manual_seed(3))
    model = AutoEncoder()
    ema = EMA(model)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    step, rows = 0, []
    for epoch in range(args.epochs):
        for (x,) in loader:
            loss = (model(x) - x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            ema.update(model, step)
            step += 1
            if step % args.eval_every == 0:
                rows.append([step, loss.item(), reconstruction_error(ema.module, held_out)])
                print("step %d loss %.4f ema %.4f" % tuple(rows[-1]))
    torch.save({"model": model.state_dict(), "ema": ema.state_dict()}, "ae.pt")
    with open("ae.csv", "w", newline="") as f:
        csv.writer(f).writerows(rows)


if __name__ == "__main__":
    main()
