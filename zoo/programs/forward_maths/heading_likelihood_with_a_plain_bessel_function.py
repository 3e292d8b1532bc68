"""Heading estimation with a von Mises likelihood: log I0(kappa) is computed as the logarithm of the plain Bessel function. For a very clear track the predicted
concentration is above 90, where I0 exceeds float32.
After https://github.com/synesenom/ran/issues/1308 (VonMises gives NaN for large kappa; exp and I0 overflow, the scaled Bessel function does not).
True cause: a function that grows like exp overflows."""
import math

import torch
from torch import nn


def von_mises_nll(angle, mu, kappa):
    log_norm = math.log(2 * math.pi) + torch.log(torch.special.i0(kappa))
    return (log_norm - kappa * torch.cos(angle - mu)).mean()


class HeadingNet(nn.Module):
    def __init__(self, features=6, width=24):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(features, width), nn.LeakyReLU(), nn.Linear(width, width), nn.LeakyReLU())
        self.direction = nn.Linear(width, 2)
        self.sharpness = nn.Linear(width, 1)

    def forward(self, hits):
        h = self.encoder(hits).sum(1)                  # over the hits of the track
        x, y = self.direction(h).unbind(-1)
        return torch.atan2(y, x), nn.functional.softplus(self.sharpness(h)).squeeze(-1)


def build():
    torch.manual_seed(0)
    model = HeadingNet()
    with torch.no_grad():
        model.sharpness.weight.abs_()
        model.encoder[2].bias.fill_(0.3)
    opt = torch.optim.RMSprop(model.parameters(), lr=2e-4)
    g = torch.Generator().manual_seed(3)
    tracks = []
    for i, hits in enumerate((12, 20, 9, 15, 1500, 18)):
        tracks.append((torch.randn(4, hits, 6, generator=g), (torch.rand(4, generator=g) * 2 - 1) * math.pi))

    def loss_fn(m, track):
        mu, kappa = m(track[0])
        return von_mises_nll(track[1], mu, kappa)

    return dict(model=model, optimizer=opt, batches=tracks, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="loss", phase="forward", op="aten.special_i0", also_op=("aten.i0",), first_bad_step=4,
                           line="torch.log(torch.special.i0(kappa))", why="kappa is far above 91, where I0 is above the largest float32"))
