"""CONTROL: Gaussian NLL whose loss is negative and keeps falling, with a bounded log-variance; targets have very small noise."""
import torch
import torch.nn as nn


class Probabilistic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 32), nn.SiLU())
        self.mu, self.logvar = nn.Linear(32, 2), nn.Linear(32, 2)

    def forward(self, x):
        h = self.body(x)
        return self.mu(h), self.logvar(h).clamp(-12.0, 6.0)


def nll(mu, logvar, y):
    return 0.5 * ((y - mu) ** 2 * torch.exp(-logvar) + logvar).mean()


def build():
    torch.manual_seed(0)
    model = Probabilistic()
    with torch.no_grad():
        model.logvar.bias.fill_(-3.0)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(12):
        x = torch.randn(32, 5, generator=g)
        batches.append((x, 1e-3 * torch.randn(32, 2, generator=g)))

    def loss_fn(m, b):
        return nll(*m(b[0]), b[1])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=24, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
