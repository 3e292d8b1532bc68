"""A count VAE starts with Adam at 3: after a few updates the log-variance of the encoder is above 88 and its exponential overflows.
After https://github.com/azizilab/starfysh/issues/45 (the learning rate is too high, so that there are NaNs).
True cause: the learning rate is too high."""
import torch
import torch.nn as nn


class Encoder(nn.Module):
    def __init__(self, genes, latent):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(genes, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.mu, self.logvar = nn.Linear(64, latent), nn.Linear(64, latent)

    def forward(self, x):
        h = self.body(torch.log1p(x))
        return self.mu(h), self.logvar(h)


class VAE(nn.Module):
    def __init__(self, genes=30, latent=4):
        super().__init__()
        self.enc = Encoder(genes, latent)
        self.dec = nn.Linear(latent, genes)


def kl(mu, logvar):
    return 0.5 * (mu.square() + logvar.exp() - 1 - logvar).sum(1)


def build():
    torch.manual_seed(3)
    model = VAE()
    opt = torch.optim.Adam(model.parameters(), lr=3.0)
    g = torch.Generator().manual_seed(4)
    batches = [(torch.poisson(torch.full((16, 30), 4.0), generator=g), torch.randn(16, 4, generator=g)) for _ in range(4)]

    def elbo(m, b):
        x, eps = b
        mu, logvar = m.enc(x)
        z = mu + eps * torch.exp(0.5 * logvar)
        logits = m.dec(z)
        rec = -(x * torch.log_softmax(logits, -1)).sum(1)
        return (rec + kl(mu, logvar)).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=elbo, steps=10, autocast_dtype=None,
                truth=dict(cause="lr_too_high", also=("exp_overflow",), module="loss", phase="forward", op="aten.exp", first_bad_step=2, line="torch.exp(0.5 * logvar)"))
