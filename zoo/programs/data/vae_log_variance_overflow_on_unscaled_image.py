"""Variational autoencoder for small images.

What goes wrong: one batch was loaded without the division by 255 (another decoder, 16-bit PNG); the
encoder's log variance becomes some hundreds and exp() overflows in the KL term.
Follows https://github.com/vanderschaarlab/synthcity/issues/331 (unbounded log variance).
True cause: one batch of 16-bit images was not scaled to [0, 1], so the log variance is huge and its exp
overflows."""

import torch
import torch.nn.functional as F
from torch import nn


class VAE(nn.Module):
    def __init__(self, d=36, z=4):
        super().__init__()
        self.enc = nn.Linear(d, 48)
        self.mu, self.logvar = nn.Linear(48, z), nn.Linear(48, z)
        self.dec = nn.Sequential(nn.Linear(z, 48), nn.ReLU(), nn.Linear(48, d))

    def forward(self, x, eps):
        h = F.relu(self.enc(x))
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + eps * torch.exp(0.5 * logvar)
        return self.dec(z), mu, logvar


def images():
    g = torch.Generator().manual_seed(19)
    for i in range(20):
        raw = torch.randint(0, 256, (16, 36), generator=g).float()
        if i == 12:
            yield raw * 257.0, torch.randn(16, 4, generator=g)  # 16 bit, never scaled
        else:
            yield raw / 255.0, torch.randn(16, 4, generator=g)


def build():
    torch.manual_seed(0)
    vae = VAE()
    optimizer = torch.optim.Adam(vae.parameters(), lr=1e-3)

    def loss_fn(vae, batch):
        x, eps = batch
        recon, mu, logvar = vae(x, eps)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        return F.mse_loss(recon, x, reduction="none").sum(1).mean() + kl

    return dict(model=vae, optimizer=optimizer, batches=list(images()), loss_fn=loss_fn, steps=20,
                autocast_dtype=None,
                truth=dict(cause="input_out_of_scale", also=("exp_overflow", "bad_input_data"), first_bad_step=12, phase="forward",
                           module="loss", op="aten.exp", also_phase=("data",), line="torch.exp(0.5 * logvar)",
                           repair=("raw * 257.0", "raw * 257.0 / 65535.0")))
