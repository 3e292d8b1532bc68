"""DCGAN-like training on 8x8 images that are scaled to [-1, 1] one by one.

What goes wrong: one image file was corrupt and decoded to a single grey value; max - min is zero and
the scaled image is 0/0 = NaN before it ever reaches the discriminator.
True cause: one corrupt image has a single grey value, so the min-max scaling divides zero by zero and the
batch holds NaN."""

import torch
import torch.nn.functional as F
from torch import nn


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.D = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(8 * 16, 1))
        self.G = nn.Sequential(nn.Linear(6, 8 * 16), nn.Unflatten(1, (8, 4, 4)),
                               nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Tanh())


def decode(index):
    g = torch.Generator().manual_seed(index)
    if index == 83:
        return torch.full((1, 8, 8), 128.0)  # truncated JPEG
    return torch.randint(0, 256, (1, 8, 8), generator=g).float()


def scale(img):
    lo, hi = img.min(), img.max()
    return 2 * (img - lo) / (hi - lo) - 1


def loader(batch_size=8, n=16):
    g = torch.Generator().manual_seed(0)
    for b in range(n):
        images = torch.stack([scale(decode(b * batch_size + k)) for k in range(batch_size)])
        for turn in ("D", "G"):
            yield turn, images, torch.randn(batch_size, 6, generator=g)


def build():
    torch.manual_seed(0)
    gan = Gan()
    optimizer = torch.optim.Adam(gan.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def loss_fn(gan, batch):
        turn, images, z = batch
        gan.D.requires_grad_(turn == "D")
        if turn == "D":
            fake = gan.G(z).detach()
            return F.softplus(-gan.D(images)).mean() + F.softplus(gan.D(fake)).mean()
        return F.softplus(-gan.D(gan.G(z))).mean()

    return dict(model=gan, optimizer=optimizer, batches=list(loader()), loss_fn=loss_fn, steps=32,
                autocast_dtype=None,
                truth=dict(cause="bad_input_data", also=("division_by_zero",), first_bad_step=20, phase="data", module="data",
                           op="data", also_op=("aten.convolution",), also_module=("D.0",), sample=3,
                           repair=("(img - lo) / (hi - lo)", "(img - lo) / (hi - lo).clamp(min=1.0)")))
