"""A tabular VAE: the log-variance is an unbounded sum over many one-hot columns, and the row that has all of them set passes 88.
After https://github.com/vanderschaarlab/synthcity/issues/331 (unbounded log variances explode when exponentiated).
True cause: overflow of exp."""
import torch
import torch.nn as nn


class TabularVAE(nn.Module):
    def __init__(self, cols=64, z=3):
        super().__init__()
        self.mu, self.lv, self.dec = nn.Linear(cols, z), nn.Linear(cols, z, bias=False), nn.Linear(z, cols)
        nn.init.constant_(self.lv.weight, 1.6)


def reparameterise(mu, lv, noise):
    return mu + noise * (lv / 2).exp()


def kld(mu, lv):
    return -0.5 * (1 + lv - mu ** 2 - lv.exp())


def build():
    torch.manual_seed(2)
    vae = TabularVAE()
    opt = torch.optim.Adam(vae.parameters(), lr=1e-5)
    g = torch.Generator().manual_seed(3)
    rows = [(torch.rand(5, 64, generator=g) < 0.15).float() for _ in range(4)]
    rows[1][3] = 1.0                                           # someone ticked every box

    def elbo(m, x):
        mu, lv = m.mu(x), m.lv(x)
        z = reparameterise(mu, lv, torch.full((5, 3), 0.1))
        bce = nn.functional.binary_cross_entropy_with_logits(m.dec(z), x)
        return bce + 1e-6 * kld(mu, lv).mean()

    return dict(model=vae, optimizer=opt, batches=rows, loss_fn=elbo, steps=4, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="loss", phase="forward", op="aten.exp", first_bad_step=1, line="return -0.5 * (1 + lv", sample=3))
