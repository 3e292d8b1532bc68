"""A left-to-right HMM trained by gradient descent on the forward algorithm in log space (own optimiser)."""
import argparse
import csv

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

NEG_INF = float("-inf")


class SignSGD(torch.optim.Optimizer):
    """Sign descent with momentum; small and without any second moment."""

    def __init__(self, params, lr=1e-2, beta=0.9):
        super().__init__(params, dict(lr=lr, beta=beta))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                state["m"].mul_(group["beta"]).add_(p.grad, alpha=1 - group["beta"])
                p.add_(state["m"].sign(), alpha=-group["lr"])


class Sequences(Dataset):
    def __init__(self, n, length=10):
        g = torch.Generator().manual_seed(20)
        cut = torch.randint(3, 7, (n, 1), generator=g)
        stage = (torch.arange(length)[None] >= cut).long() + (torch.arange(length)[None] >= cut + 2).long()
        noise = torch.randint(0, 6, (n, length), generator=g)
        keep = torch.rand(n, length, generator=g) < 0.8
        self.obs = torch.where(keep, stage * 2, noise)

    def __len__(self):
        return len(self.obs)

    def __getitem__(self, i):
        return self.obs[i]


class HMM(nn.Module):
    def __init__(self, states=3, symbols=6):
        super().__init__()
        self.trans, self.emit = nn.Parameter(torch.zeros(states, states)), nn.Parameter(0.1 * torch.randn(states, symbols))
        allowed = torch.ones(states, states, dtype=torch.bool).triu() & ~torch.ones(states, states, dtype=torch.bool).triu(2)
        start = torch.full((states,), NEG_INF)
        start[0] = 0.0
        self.register_buffer("allowed", allowed)
        self.register_buffer("log_start", start)

    def forward(self, obs):
        log_a = torch.log_softmax(self.trans.masked_fill(~self.allowed, NEG_INF), 1)
        log_b = torch.log_softmax(self.emit, 1)
        alpha = self.log_start + log_b[:, obs[:, 0]].t()
        for t in range(1, obs.size(1)):
            scores = []
            for j in range(log_a.size(0)):
                prev = self.allowed[:, j].nonzero().squeeze(1)
                prev = prev[prev <= t - 1]  # states that can be reached by then
                if len(prev) == 0:
                    scores.append(torch.full((obs.size(0),), NEG_INF))
                else:
                    scores.append(torch.logsumexp(alpha[:, prev] + log_a[prev, j], 1) + log_b[j, obs[:, t]])
            alpha = torch.stack(scores, 1)
        return -torch.logsumexp(alpha, 1).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--lr", type=float, default=0.02)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(Sequences(160), 16, shuffle=True, generator=torch.Generator().manual_seed(0))
    model = HMM()
    opt = SignSGD(model.parameters(), lr=args.lr)
    rows = []
    for epoch in range(args.epochs):
        for obs in loader:
            nll = model(obs)
            opt.zero_grad()
            nll.backward()
            opt.step()
            rows.append([epoch, nll.item()])
        print(f"epoch {epoch} nll {nll.item():.4f}")
    with open("hmm.csv", "w", newline="") as f:
        csv.writer(f).writerows(rows)
    print("transition", torch.softmax(model.trans.detach().masked_fill(~model.allowed, NEG_INF), 1).tolist())


if __name__ == "__main__":
    main()
