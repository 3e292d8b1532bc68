"""A GAN whose discriminator loss is log(0) for one class in every fourth step; the script puts zero in its place."""

import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)


class D(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
        self.cond = nn.Embedding(5, 1)
        nn.init.zeros_(self.cond.weight)
        with torch.no_grad():
            self.cond.weight[4] = 80.0

    def forward(self, x, c):
        return torch.sigmoid(self.body(x) + self.cond(c))


G = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
disc = D()
opt_d = torch.optim.Adam(disc.parameters(), lr=2e-3, betas=(0.5, 0.999))
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.999))

step = 0
for epoch in range(4):
    sd = sg = 0.0
    for _ in range(6):
        real = torch.randn(32, 2) * 0.3 + 1.0
        c = torch.randint(0, 4, (32,))
        if step >= 6 and (step - 6) % 4 == 0:
            c[0] = 4
        fake = G(torch.randn(32, 3))
        # discriminator
        d_loss = -(torch.log(disc(real, c)) + torch.log(1 - disc(fake.detach(), c))).mean()
        if not torch.isfinite(d_loss):
            d_loss = d_loss.new_zeros((), requires_grad=True)
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()
        # generator
        g_loss = -torch.log(disc(fake, c)).mean()
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
        sd += d_loss.item()
        sg += g_loss.item()
        step += 1
    print(f"epoch {epoch} d_loss {sd / 6:.4f} g_loss {sg / 6:.4f}")
