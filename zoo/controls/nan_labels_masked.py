"""CONTROL: multi-task toxicity. Missing labels are NaN in every batch; they are replaced before the loss and masked out of it."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiTask(nn.Module):
    def __init__(self, tasks=6):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(14, 32), nn.ReLU(), nn.Dropout(0.1))
        self.heads = nn.ModuleList([nn.Linear(32, 1) for _ in range(tasks)])

    def forward(self, x):
        h = self.trunk(x)
        return torch.cat([head(h) for head in self.heads], -1)


def masked_bce(logits, y):
    known = ~torch.isnan(y)
    y = torch.where(known, y, torch.zeros_like(y))
    per = F.binary_cross_entropy_with_logits(logits, y, reduction="none")
    return (per * known).sum() / known.sum().clamp(min=1)


def build():
    torch.manual_seed(0)
    model = MultiTask()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(10):
        y = torch.randint(0, 2, (8, 6), generator=g).float()
        y[torch.rand(8, 6, generator=g) < 0.4] = float("nan")
        if i == 5:
            y[:] = float("nan")
        batches.append({"x": torch.randn(8, 14, generator=g), "y": y})

    def loss_fn(m, b):
        return masked_bce(m(b["x"]), b["y"])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
