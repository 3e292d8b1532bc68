"""Speaker classification with a home-made batch normalisation that keeps unbiased running variances."""
import argparse
import json

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class SimpleBatchNorm(nn.Module):
    def __init__(self, dim, momentum=0.1, eps=1e-5):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))
        self.momentum, self.eps = momentum, eps

    def forward(self, x):
        if self.training:
            mean = x.mean(0)
            var = ((x - mean) ** 2).mean(0)
            with torch.no_grad():
                n = torch.tensor(float(x.size(0)))
                unbiased = var * n / (n - 1)
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(unbiased, self.momentum)
        else:
            mean, var = self.running_mean, self.running_var
        return (x - mean) / (var + self.eps).sqrt() * self.weight + self.bias


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.bn, self.fc2 = nn.Linear(14, 32), SimpleBatchNorm(32), nn.Linear(32, 3)

    def forward(self, x):
        return self.fc2(torch.relu(self.bn(self.fc1(x))))


def speakers(n, seed):
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(3, 14, generator=torch.Generator().manual_seed(50))
    y = torch.randint(0, 3, (n,), generator=g)
    return TensorDataset(centres[y] + torch.randn(n, 14, generator=g), y)


class Trainer:
    def __init__(self, model, train, val, lr):
        self.model, self.train, self.val = model, train, val
        self.opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True)
        self.loss = nn.CrossEntropyLoss()

    def epoch(self):
        self.model.train()
        total = 0.0
        for x, y in self.train:
            self.opt.zero_grad()
            loss = self.loss(self.model(x), y)
            loss.backward()
            self.opt.step()
            total += loss.item() * len(y)
        return total / len(self.train.dataset)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        loss, hit = 0.0, 0
        for x, y in self.val:
            logits = self.model(x)
            loss += self.loss(logits, y).item() * len(y)
            hit += (logits.argmax(1) == y).sum().item()
        return loss / len(self.val.dataset), hit / len(self.val.dataset)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--train-size", type=int, default=257)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train = DataLoader(speakers(args.train_size, 1), args.batch_size, shuffle=True,
                       generator=torch.Generator().manual_seed(4))
    trainer = Trainer(Net(), train, DataLoader(speakers(96, 2), 32), lr=0.02)
    log = []
    for epoch in range(args.epochs):
        tr = trainer.epoch()
        va, acc = trainer.validate()
        log.append({"epoch": epoch, "train": tr, "val": va, "acc": acc})
        print(log[-1])
    with open("speakers.json", "w") as f:
        json.dump(log, f)


if __name__ == "__main__":
    main()
