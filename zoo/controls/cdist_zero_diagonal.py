"""CONTROL: metric learning with torch.cdist and torch.linalg.norm, duplicates in the batch, distances of exactly 0 on and off the diagonal.
PyTorch defines these gradients as 0."""
import torch
import torch.nn as nn


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, 24), nn.Tanh(), nn.Linear(24, 5))

    def forward(self, x):
        return self.net(x)


def stress(z, target):
    d = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist")
    n = torch.linalg.norm(z[:, None] - z[None], dim=-1)
    return (d - target).pow(2).mean() + 0.1 * (n - target).abs().mean()


def build():
    torch.manual_seed(0)
    model = Embedder()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(6):
        x = torch.randn(7, 9, generator=g)
        x[3] = x[0]
        if i == 4:
            x[:] = x[:1]
        batches.append((x, torch.rand(7, 7, generator=g)))

    def loss_fn(m, b):
        return stress(m(b[0]), b[1])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
