"""WGAN-GP critic on small vectors; the norm in the penalty is protected by a small constant.

One point has an input gradient of exactly zero, which is harmless here.

Healthy twin of gradient_penalty_norm_of_zero_gradient.py."""

import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1), nn.ReLU())

    def forward(self, x):
        return self.net(x).squeeze(1)


def gradient_penalty(critic, real, fake, eps):
    mix = (eps * real + (1 - eps) * fake).requires_grad_(True)
    score = critic(mix)
    g, = torch.autograd.grad(score.sum(), mix, create_graph=True)
    slope = ((g ** 2).sum(dim=1) + 1e-12).sqrt()
    return ((slope - 1) ** 2).mean()


def make_batches():
    gen = torch.Generator().manual_seed(4)
    for i in range(12):
        real = torch.randn(16, 8, generator=gen) + 2.0
        fake = torch.randn(16, 8, generator=gen) + 1.5
        if i == 7:  # the generator collapsed for a moment, everything lies far out
            real[3], fake[3] = real[3] - 60, fake[3] - 60
        yield real, fake, torch.rand(16, 1, generator=gen)


def build():
    torch.manual_seed(0)
    critic = Critic()
    with torch.no_grad():  # positive start: no unit is dead for ordinary points
        for p in critic.parameters():
            p.abs_()
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))
    batches = list(make_batches())

    def loss_fn(critic, batch):
        real, fake, eps = batch
        return critic(fake).mean() - critic(real).mean() + 10.0 * gradient_penalty(critic, real, fake, eps)

    return dict(model=critic, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="benign", first_bad_step=None))
