"""WGAN-GP on 8x8 blobs. The critic's last layer starts at zero, as in many residual recipes."""
import argparse
import csv

import torch
import torch.nn as nn


class Generator(nn.Module):
    def __init__(self, nz=16):
        super().__init__()
        self.fc = nn.Linear(nz, 16 * 4)
        self.body = nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ReLU(),
                                  nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Tanh())

    def forward(self, z):
        return self.body(self.fc(z).view(-1, 16, 2, 2))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.SiLU(), nn.Conv2d(8, 16, 4, 2, 1), nn.SiLU(),
                                  nn.Flatten())
        self.score = nn.Linear(64, 1)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    def forward(self, x):
        return self.score(self.body(x)).squeeze(-1)


def gradient_penalty(critic, real, fake, lam, g):
    eps = torch.rand(real.size(0), 1, 1, 1, generator=g)
    mix = (eps * real + (1 - eps) * fake).requires_grad_(True)
    grad, = torch.autograd.grad(critic(mix).sum(), mix, create_graph=True)
    slopes = torch.sqrt(grad.square().flatten(1).sum(1))
    return lam * ((slopes - 1) ** 2).mean()


def blobs(n, g):
    xy = torch.rand(n, 2, generator=g) * 6 + 1
    grid = torch.arange(8).float()
    d = (grid.view(1, 8, 1) - xy[:, 1].view(-1, 1, 1)) ** 2 + (grid.view(1, 1, 8) - xy[:, 0].view(-1, 1, 1)) ** 2
    return (2 * torch.exp(-d / 3) - 1).unsqueeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--n-critic", type=int, default=3)
    ap.add_argument("--lam", type=float, default=10.0)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    G, C = Generator(), Critic()
    g_opt = torch.optim.Adam(G.parameters(), lr=1e-4, betas=(0.0, 0.9))
    c_opt = torch.optim.Adam(C.parameters(), lr=1e-4, betas=(0.0, 0.9))
    with open("wgan.csv", "w", newline="") as f:
        out = csv.writer(f)
        for step in range(args.steps):
            for _ in range(args.n_critic):
                real = blobs(32, g)
                fake = G(torch.randn(32, 16, generator=g)).detach()
                c_loss = C(fake).mean() - C(real).mean() + gradient_penalty(C, real, fake, args.lam, g)
                c_opt.zero_grad()
                c_loss.backward()
                c_opt.step()
            g_loss = -C(G(torch.randn(32, 16, generator=g))).mean()
            g_opt.zero_grad()
            g_loss.backward()
            g_opt.step()
            out.writerow([step, c_loss.item(), g_loss.item()])
            print(f"{step}: critic {c_loss.item():.4f} generator {g_loss.item():.4f}")


if __name__ == "__main__":
    main()
