"""Least-squares GAN on a ring of Gaussians; generator and discriminator with their own optimisers."""
import argparse
import json
import math

import torch
import torch.nn as nn


def ring(n, g, k=8):
    c = torch.randint(0, k, (n,), generator=g).float() * (2 * math.pi / k)
    return torch.stack([c.cos(), c.sin()], 1) * 2 + 0.05 * torch.randn(n, 2, generator=g)


def net(i, o, h=128):
    return nn.Sequential(nn.Linear(i, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, o))


class LSGANLoss(nn.Module):
    """Keeps a running mean of the discriminator output for logging."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean_real", torch.zeros(()))

    def d(self, real, fake):
        self.mean_real.mul_(0.9).add_(real.detach().mean(), alpha=0.1)
        return 0.5 * ((real - 1) ** 2).mean() + 0.5 * (fake ** 2).mean()

    def g(self, fake):
        return 0.5 * ((fake - 1) ** 2).mean()


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--g-lr", type=float, default=1e-3)
    ap.add_argument("--d-lr", type=float, default=2.0)
    ap.add_argument("--momentum", type=float, default=0.5)
    ap.add_argument("--nz", type=int, default=16)
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=128)
    return ap.parse_args()


def main():
    args = parse()
    torch.set_num_threads(1)
    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(8)
    G, D, criterion = net(args.nz, 2), net(2, 1), LSGANLoss()
    g_opt = torch.optim.SGD(G.parameters(), lr=args.g_lr, momentum=args.momentum)
    d_opt = torch.optim.SGD(D.parameters(), lr=args.d_lr, momentum=args.momentum)
    history = []
    for step in range(args.steps):
        real = ring(args.batch, gen)
        z = torch.randn(args.batch, args.nz, generator=gen)
        # discriminator
        d_opt.zero_grad()
        d_loss = criterion.d(D(real), D(G(z).detach()))
        d_loss.backward()
        d_opt.step()
        # generator
        g_opt.zero_grad()
        g_loss = criterion.g(D(G(z)))
        g_loss.backward()
        g_opt.step()
        history.append({"step": step, "d": d_loss.item(), "g": g_loss.item(), "real": criterion.mean_real.item()})
        if step % 5 == 0:
            print(history[-1])
    with open("gan.json", "w") as f:
        json.dump(history, f)
    torch.save({"G": G.state_dict(), "D": D.state_dict()}, "gan.pt")


if __name__ == "__main__":
    main()
