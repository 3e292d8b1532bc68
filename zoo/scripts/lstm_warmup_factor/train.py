"""One-step-ahead forecasting of a seasonal series: LSTM, truncated BPTT, SGD and a linear warm-up."""
import argparse
import csv

import numpy as np
import torch
import torch.nn as nn


def make_series(n, seed):
    rng = np.random.default_rng(seed)
    t = np.arange(n)
    y = 2.0 + np.sin(2 * np.pi * t / 24) + 0.3 * np.sin(2 * np.pi * t / 168) + 0.05 * rng.normal(size=n)
    return y.astype(np.float32)


class Forecaster(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.rnn = nn.LSTM(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x, state):
        out, state = self.rnn(x, state)
        return self.head(out), state


def warmup(warmup_steps):
    """Linear warm-up, then constant."""
    def fn(step):
        if step < warmup_steps:
            return float(step + 1)
        return 1.0
    return fn


class Trainer:
    def __init__(self, args):
        self.args = args
        self.model = Forecaster()
        self.opt = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, warmup(args.warmup))
        self.rows = []

    def fit(self, series):
        chunks = torch.from_numpy(series).view(self.args.batch, -1, 1)
        step = 0
        for epoch in range(self.args.epochs):
            state = None
            for s in range(0, chunks.size(1) - 1 - self.args.bptt, self.args.bptt):
                x, y = chunks[:, s:s + self.args.bptt], chunks[:, s + 1:s + 1 + self.args.bptt]
                pred, state = self.model(x, state)
                state = tuple(v.detach() for v in state)
                loss = ((pred - y) ** 2).mean()
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                self.sched.step()
                self.rows.append([step, loss.item(), self.sched.get_last_lr()[0]])
                if step % 10 == 0:
                    print(f"step {step} loss {loss.item():.5g} lr {self.rows[-1][2]:.4g}")
                step += 1

    def save(self, path):
        with open(path, "w", newline="") as f:
            w = csv.writer(f)
            w.writerow(["step", "loss", "lr"])
            w.writerows(self.rows)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=0.4)
    ap.add_argument("--warmup", type=int, default=200)
    ap.add_argument("--bptt", type=int, default=16)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--epochs", type=int, default=8)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(11)
    trainer = Trainer(args)
    trainer.fit(make_series(2400, 4))
    trainer.save("curve.csv")


if __name__ == "__main__":
    main()
