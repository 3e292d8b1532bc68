"""A VAE for tabular data. AdamW moves every weight by the whole rate in its first step, and the rate is 3: after one step all weights
of the encoder are near +-3, and the log-variance, a sum of many products of them, goes far below zero at step 1 (the loss is 1e15) and
to tens of thousands at step 2: exp is Inf. One may suspect the missing clamp of the log-variance, but at step 0 it was below 1. The
true cause is the rate."""
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.mu, self.logvar = nn.Linear(64, 4), nn.Linear(64, 4)

    def forward(self, x):
        h = self.body(x)
        return self.mu(h), self.logvar(h)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 20))


def loss_fn(model, batch):
    x, noise = batch
    mu, logvar = model.encoder(x)
    std = torch.exp(0.5 * logvar)
    recon = model.decoder(mu + noise * std)
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(-1).mean()
    return (recon - x).pow(2).sum(-1).mean() + kl


def build():
    torch.manual_seed(23)
    model = VAE()
    batches = [(torch.randn(32, 20), torch.randn(32, 4)) for _ in range(4)]
    opt = torch.optim.AdamW(model.parameters(), lr=3.0)
    truth = dict(
        cause="lr_too_high", first_bad_step=2, phase="forward", module="loss", op="aten.exp",
        line="std = torch.exp(0.5 * logvar)",
        why="the first update moves each weight by 3; the log-variance goes from below 1 to tens of thousands within two updates",
        repair=("lr=3.0", "lr=0.03"),
    )
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None, truth=truth)
