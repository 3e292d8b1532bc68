"""Residual net with weight normalisation; the last layer of each block starts at zero ("zero init").

What goes wrong: weight norm computes g * v / |v|, and the zero start makes |v| zero: 0/0.
True cause: the output layer is zero-initialised before weight normalisation, which then divides zero by the
norm zero."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Conv1d(c, c, 3, padding=1)
        self.conv2 = nn.Conv1d(c, c, 3, padding=1)
        nn.init.zeros_(self.conv2.weight)
        self.conv1 = weight_norm(self.conv1)
        self.conv2 = weight_norm(self.conv2)

    def forward(self, x):
        return x + self.conv2(F.leaky_relu(self.conv1(x), 0.1))


class Denoiser(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.pre = nn.Conv1d(1, c, 7, padding=3)
        self.blocks = nn.Sequential(Block(c), Block(c))
        self.post = nn.Conv1d(c, 1, 7, padding=3)

    def forward(self, x):
        return self.post(self.blocks(self.pre(x)))


def build():
    torch.manual_seed(0)
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    clean = torch.sin(torch.arange(64) * torch.rand(48, 1) * 0.5).unsqueeze(1)
    noisy = clean + 0.2 * torch.randn_like(clean)
    batches = list(zip(noisy.split(8), clean.split(8)))

    def loss_fn(model, batch):
        noisy, clean = batch
        return F.l1_loss(model(noisy), clean)

    return dict(model=model, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="bad_initialisation", also=("division_by_zero",), first_bad_step=0, phase="forward",
                           module="blocks.0.conv2.parametrizations.weight.0", op="aten._weight_norm_interface",
                           line="self.conv2(F.leaky_relu",
                           repair=("nn.init.zeros_(self.conv2.weight)", "nn.init.normal_(self.conv2.weight, std=1e-3)")))
