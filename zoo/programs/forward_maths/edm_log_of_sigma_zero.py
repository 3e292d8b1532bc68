"""EDM diffusion. To teach the network clean images, the noise sampler gives sigma = 0 to one sample of every third batch. The input and
output scalings are fine at 0 and the loss weight is capped, but the noise conditioning is log(sigma) / 4 = -inf, and cos(-inf) is NaN.
True cause: logarithm of zero in the preconditioning."""
import math
import torch
import torch.nn as nn


class NoiseEmbedding(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.register_buffer("freqs", 2 * math.pi * torch.linspace(0.5, 4, d // 2))
        self.lin = nn.Linear(d, d)

    def forward(self, c):
        a = c[:, None] * self.freqs
        return self.lin(torch.cat([a.cos(), a.sin()], -1))


class Backbone(nn.Module):
    def __init__(self, d=10):
        super().__init__()
        self.emb, self.inp, self.out = NoiseEmbedding(), nn.Linear(d, 16), nn.Linear(16, d)

    def forward(self, x, c_noise):
        return self.out(torch.nn.functional.silu(self.inp(x) + self.emb(c_noise)))


class Precond(nn.Module):
    def __init__(self, sigma_data=0.5):
        super().__init__()
        self.net, self.sd = Backbone(), sigma_data

    def forward(self, x, sigma):
        total = (sigma ** 2 + self.sd ** 2).sqrt()[:, None]
        c_skip, c_out, c_in = self.sd ** 2 / total ** 2, sigma[:, None] * self.sd / total, 1 / total
        c_noise = sigma.log() / 4
        return c_skip * x + c_out * self.net(c_in * x, c_noise)


class Edm(nn.Module):
    def __init__(self):
        super().__init__()
        self.precond = Precond()

    def forward(self, x, sigma):
        return self.precond(x, sigma)


def build():
    torch.manual_seed(0)
    model = Edm()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(6):
        sigma = (torch.randn(6, generator=g) * 1.2 - 1.2).exp()
        if i % 3 == 2:
            sigma[0] = 0.0
        batches.append({"x": torch.randn(6, 10, generator=g) * 0.5, "sigma": sigma, "noise": torch.randn(6, 10, generator=g)})

    def loss_fn(m, b):
        sigma = b["sigma"]
        weight = ((sigma ** 2 + 0.25) / (sigma * 0.5).clamp(min=0.05) ** 2).clamp(max=100.0)
        d = m(b["x"] + sigma[:, None] * b["noise"], sigma)
        return (weight[:, None] * (d - b["x"]) ** 2).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="precond", phase="forward", op="aten.log", first_bad_step=2))
