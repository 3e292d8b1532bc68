"""DDPM on a two-dimensional toy distribution (two moons), epsilon prediction with a deep SiLU MLP."""
import argparse
import math

import torch
import torch.nn as nn


def two_moons(n, g):
    t = math.pi * torch.rand(n, generator=g)
    side = torch.randint(0, 2, (n,), generator=g).float()
    x = torch.cos(t) * (1 - 2 * side) + side
    y = torch.sin(t) * (1 - 2 * side) + 0.5 * side
    return torch.stack([x, y], 1) + 0.05 * torch.randn(n, 2, generator=g)


class Schedule:
    def __init__(self, T=100, start=1e-4, end=2e-2):
        self.T = T
        self.betas = torch.linspace(start, end, T)
        self.abar = torch.cumprod(1 - self.betas, 0)

    def add_noise(self, x0, t, noise):
        a = self.abar[t].unsqueeze(1)
        return a.sqrt() * x0 + (1 - a).sqrt() * noise


class Denoiser(nn.Module):
    def __init__(self, width=256, depth=5):
        super().__init__()
        self.temb = nn.Embedding(100, 32)
        dims = [2 + 32] + [width] * depth
        self.body = nn.Sequential(*[m for a, b in zip(dims, dims[1:]) for m in (nn.Linear(a, b), nn.SiLU())])
        self.out = nn.Linear(width, 2)

    def forward(self, x, t):
        return self.out(self.body(torch.cat([x, self.temb(t)], 1)))


@torch.no_grad()
def sample(model, sched, n, g):
    x = torch.randn(n, 2, generator=g)
    for i in reversed(range(sched.T)):
        t = torch.full((n,), i)
        eps = model(x, t)
        a, ab = 1 - sched.betas[i], sched.abar[i]
        x = (x - (1 - a) / (1 - ab).sqrt() * eps) / a.sqrt()
        if i > 0:
            x = x + sched.betas[i].sqrt() * torch.randn(n, 2, generator=g)
    return x


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=1.0)
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--sample-every", type=int, default=1000)
    args = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(42)
    g = torch.Generator().manual_seed(5)
    sched, model = Schedule(), Denoiser()
    opt = torch.optim.RMSprop(model.parameters(), lr=args.lr)
    for step in range(args.steps):
        x0 = two_moons(args.batch, g)
        t = torch.randint(0, sched.T, (args.batch,), generator=g)
        noise = torch.randn(args.batch, 2, generator=g)
        pred = model(sched.add_noise(x0, t, noise), t)
        loss = (pred - noise).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            print(f"step {step:4d} mse {loss.item():.5g}")
        if (step + 1) % args.sample_every == 0:
            torch.save(sample(model, sched, 64, g), f"samples_{step}.pt")
    torch.save(model.state_dict(), "ddpm.pt")


if __name__ == "__main__":
    main()
