"""Node regression with a two-layer GCN on a random geometric graph; full-batch SGD."""
import argparse
import json

import numpy as np
import torch
import torch.nn as nn


def build_graph(n, seed):
    rng = np.random.default_rng(seed)
    pos = rng.random((n, 2))
    dist = np.linalg.norm(pos[:, None] - pos[None], axis=-1)
    adj = ((dist < 0.25) & (dist > 0)).astype(np.float32) + np.eye(n, dtype=np.float32)
    deg = adj.sum(1)
    adj = adj / np.sqrt(deg[:, None] * deg[None])
    feats = np.concatenate([pos, np.sin(4 * pos), deg[:, None] / 20.0], 1).astype(np.float32)
    target = (np.sin(3 * pos[:, 0]) + pos[:, 1] ** 2).astype(np.float32)
    return torch.from_numpy(adj.astype(np.float32)), torch.from_numpy(feats), torch.from_numpy(target)


class GCNLayer(nn.Module):
    def __init__(self, fin, fout):
        super().__init__()
        self.lin = nn.Linear(fin, fout)

    def forward(self, adj, x):
        return adj @ self.lin(x)


class GCN(nn.Module):
    def __init__(self, fin, hidden):
        super().__init__()
        self.conv1 = GCNLayer(fin, hidden)
        self.readout = nn.Linear(hidden, 1)

    def forward(self, adj, x):
        h = torch.tanh(self.conv1(adj, x))
        return self.readout(h).squeeze(-1)


def r2(pred, target):
    return (1 - ((pred - target) ** 2).sum() / ((target - target.mean()) ** 2).sum()).item()


def main():
    parser = argparse.ArgumentParser("gcn")
    parser.add_argument("--nodes", type=int, default=120)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--freeze-conv", action="store_true", default=True,
                        help="random graph features, train the readout only (as in reservoir GCNs)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    adj, feats, target = build_graph(args.nodes, 0)
    train_mask = torch.zeros(args.nodes, dtype=torch.bool)
    train_mask[torch.randperm(args.nodes)[: args.nodes * 3 // 4]] = True
    model = GCN(feats.size(1), args.hidden)
    if args.freeze_conv:
        nn.init.normal_(model.conv1.lin.weight, 0.0, 1.0)
        for p in model.conv1.parameters():
            p.requires_grad_(False)
    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=args.lr)
    log = []
    for epoch in range(args.epochs):
        model.train()
        opt.zero_grad()
        pred = model(adj, feats)
        loss = ((pred[train_mask] - target[train_mask]) ** 2).mean()
        loss.backward()
        opt.step()
        if epoch % 10 == 0:
            model.eval()
            with torch.no_grad():
                val = r2(model(adj, feats)[~train_mask], target[~train_mask])
            log.append({"epoch": epoch, "loss": loss.item(), "val_r2": val})
            print(log[-1])
    with open("log.json", "w") as f:
        json.dump(log, f)


if __name__ == "__main__":
    main()
