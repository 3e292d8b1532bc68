"""A small denoising diffusion model (noise prediction) on two-dimensional points.

Healthy twin of diffusion_lr_scaled_by_batch_size.py."""

import torch
import torch.nn.functional as F
from torch import nn

T, BATCH, BASE_LR = 100, 256, 4e-3


class NoiseNet(nn.Module):
    def __init__(self, width=128, depth=13):
        super().__init__()
        self.time = nn.Embedding(T, width)
        self.inp = nn.Linear(2, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, 2)

    def forward(self, x, t):
        h = F.silu(self.inp(x) + self.time(t))
        for layer in self.hidden:
            h = F.silu(layer(h))
        return self.out(h)


def build():
    torch.manual_seed(0)
    betas = torch.linspace(1e-4, 0.05, T)
    alpha_bar = torch.cumprod(1 - betas, 0)
    model = NoiseNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=BASE_LR * BATCH / 256)
    g = torch.Generator().manual_seed(8)
    batches = []
    for _ in range(30):
        theta = torch.rand(BATCH, generator=g) * 6.283
        x0 = torch.stack([theta.cos(), (2 * theta).sin()], 1)
        batches.append((x0, torch.randint(0, T, (BATCH,), generator=g), torch.randn(BATCH, 2, generator=g)))

    def loss_fn(model, batch):
        x0, t, noise = batch
        ab = alpha_bar[t].unsqueeze(1)
        noisy = ab.sqrt() * x0 + (1 - ab).sqrt() * noise
        return F.mse_loss(model(noisy, t), noise)

    return dict(model=model, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=30, autocast_dtype=None,
                truth=dict(cause="benign", first_bad_step=None))
