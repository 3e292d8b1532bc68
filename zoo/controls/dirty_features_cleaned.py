"""CONTROL: raw tabular data with NaN, Inf and 1e30 sentinels in every batch; the first layer replaces and clips them before anything is computed.
One batch is all missing. The target is in the billions, so the loss is about 1e18 and perfectly finite."""
import torch
import torch.nn as nn


class Clean(nn.Module):
    def forward(self, x):
        missing = ~torch.isfinite(x) | (x.abs() > 1e20)
        return torch.cat([x.masked_fill(missing, 0.0).clamp(-10, 10), missing.float()], -1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.clean = Clean()
        self.body = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, x):
        return self.body(self.clean(x)).squeeze(-1)


def build():
    torch.manual_seed(0)
    model = Net()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(8):
        x = torch.randn(12, 8, generator=g)
        x[2, 1], x[3, 4], x[5, 0], x[7, 7] = float("nan"), float("inf"), 1e30, float("-inf")
        if i == 4:
            x[:] = float("nan")
        batches.append({"x": x, "revenue": 1e9 * (1 + torch.rand(12, generator=g))})

    def loss_fn(m, b):
        return nn.functional.mse_loss(m(b["x"]), b["revenue"])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
