"""Organ segmentation: soft dice loss, restricted to the labelled region of each slice.

What goes wrong: one slice has no labelled region at all; prediction and target are both multiplied by
zero and the dice score is 0/0 because the smoothing term was left out.
Similar: https://github.com/nasa/delta/pull/115 and https://github.com/Deci-AI/super-gradients/issues/912.
True cause: a slice has no labelled region, so both the overlap and the total are zero and the dice score is
0/0."""

import torch
from torch import nn


class TinyUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.mid = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        return self.out(torch.relu(self.up(self.mid(self.down(x)))))


def dice_loss(logits, mask, valid):
    p = torch.sigmoid(logits) * valid
    t = mask * valid
    inter = (p * t).sum(dim=(1, 2, 3))
    total = p.sum(dim=(1, 2, 3)) + t.sum(dim=(1, 2, 3))
    return 1 - (2 * inter / total).mean()


def slices():
    g = torch.Generator().manual_seed(88)
    for i in range(10):
        x = torch.randn(4, 1, 12, 12, generator=g)
        mask = (x > 0.5).float()
        valid = torch.ones_like(x)
        valid[:, :, :2] = 0
        if i == 3:
            valid[2] = 0
        yield x, mask, valid


def build():
    torch.manual_seed(0)
    model = TinyUNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss_fn(model, batch):
        x, mask, valid = batch
        return dice_loss(model(x), mask, valid)

    return dict(model=model, optimizer=optimizer, batches=list(slices()), loss_fn=loss_fn, steps=10,
                autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=("bad_input_data", "empty_reduction"), first_bad_step=3, phase="forward",
                           module="loss", op="aten.div", line="2 * inter / total", sample=2,
                           repair=("2 * inter / total", "(2 * inter + 1) / (total + 1)")))
