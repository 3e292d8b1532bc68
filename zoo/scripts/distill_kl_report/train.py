"""evaluate: compare a student's class distribution with a teacher's (KL, JS, agreement) and write a report."""
import argparse
import json

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, hidden, classes=6):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    def forward(self, x):
        return self.net(x)


class DivergenceMeter:
    """Accumulates per-sample divergences between two sets of class probabilities."""

    def __init__(self):
        self.kl, self.js, self.agree = [], [], []

    def update(self, p, q):
        self.kl.append((p * (p.log() - q.log())).sum(1))
        m = 0.5 * (p + q)
        self.js.append((m - p).abs().sum(1) * 0.5)
        self.agree.append((p.argmax(1) == q.argmax(1)).float())

    def result(self):
        return {k: torch.cat(getattr(self, k)).mean().item() for k in ("kl", "js", "agree")}


def export_weights():
    """Stands for two released checkpoints."""
    torch.manual_seed(31)
    torch.save(Net(64).state_dict(), "teacher.pt")
    torch.save(Net(16).state_dict(), "student.pt")


def load(path, hidden):
    net = Net(hidden)
    net.load_state_dict(torch.load(path))
    return net.eval()


def active_classes(logits, allowed):
    """Some sites have only part of the classes; the others are removed from the teacher's distribution."""
    return logits.masked_fill(~allowed, float("-inf"))


@torch.no_grad()
def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--samples", type=int, default=96)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--temperature", type=float, default=2.0)
    args = ap.parse_args()
    torch.set_num_threads(1)
    export_weights()
    teacher, student = load("teacher.pt", 64), load("student.pt", 16)
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(args.samples, 8)).astype(np.float32))
    allowed = torch.ones(args.samples, 6, dtype=torch.bool)
    allowed[52:, 5] = False
    meter = DivergenceMeter()
    for inputs, ok in DataLoader(TensorDataset(x, allowed), batch_size=args.batch_size):
        p = torch.softmax(active_classes(teacher(inputs), ok) / args.temperature, 1)
        q = torch.softmax(student(inputs) / args.temperature, 1)
        meter.update(p, q)
    report = meter.result()
    print("report", report)
    with open("report.json", "w") as f:
        json.dump(report, f, indent=2)


if __name__ == "__main__":
    main()
