"""Least-squares GAN on a ring of Gaussians, discriminator and generator trained in turns.

What goes wrong: SGD with lr=1.0 for both networks; the discriminator's least-squares loss has no
bound and the two networks drive each other up until everything is inf.
Follows https://github.com/dyelax/Adversarial_Video_Generation/issues/5 (NaN from a too high rate
of the discriminator).
True cause: the learning rate of 1.0 is far too high for a least-squares GAN; the discriminator diverges
within a few turns."""
import math

import torch
from torch import nn

LR = 1.0


class Gan(nn.Module):
    def __init__(self, z=4, h=32):
        super().__init__()
        self.G = nn.Sequential(nn.Linear(z, h), nn.LeakyReLU(0.2), nn.Linear(h, 2))
        self.D = nn.Sequential(nn.Linear(2, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, 1))


def set_requires_grad(net, flag):
    for p in net.parameters():
        p.requires_grad_(flag)


def real_points(n, g):
    k = torch.randint(0, 8, (n,), generator=g).float() * (math.pi / 4)
    return torch.stack([k.cos(), k.sin()], 1) * 2 + 0.05 * torch.randn(n, 2, generator=g)


def build():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(5)
    gan = Gan()
    optimizer = torch.optim.SGD([{"params": gan.D.parameters(), "lr": LR},
                                 {"params": gan.G.parameters(), "lr": LR * 0.5}], lr=LR)
    batches = []
    for i in range(60):
        turn = "D" if i % 2 == 0 else "G"
        batches.append((turn, real_points(32, g), torch.randn(32, 4, generator=g)))

    def loss_fn(gan, batch):
        turn, real, z = batch
        set_requires_grad(gan.D, turn == "D")
        if turn == "D":
            with torch.no_grad():
                fake = gan.G(z)
            return 0.5 * ((gan.D(real) - 1).pow(2).mean() + gan.D(fake).pow(2).mean())
        return 0.5 * (gan.D(gan.G(z)) - 1).pow(2).mean()

    return dict(model=gan, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=60, autocast_dtype=None,
                truth=dict(cause="lr_too_high", also=("exploding_gradient",), first_bad_step=8, phase="forward", module="loss",
                           op="aten.pow", line="return 0.5 * ((gan.D(real) - 1).pow(2).mean() + gan.D(fake).pow(2).mean())",
                           repair=("LR = 1.0", "LR = 0.02")))
