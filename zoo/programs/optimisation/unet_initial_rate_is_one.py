"""The initial learning rate of a denoising network is left at 1: Adam's first update moves every weight by 1 and the loss overflows.
After https://github.com/PENGLU-WashU/IMC_Denoise/issues/11 (the current initial learning rate is 1, which is too big; set 1e-3).
True cause: the learning rate is too high; one update throws the weights away."""
import torch
from torch import nn


class DoubleConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(i, o, 3, padding=1), nn.Conv2d(o, o, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv2(torch.relu(self.conv1(x))))


class UNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.down1, self.down2 = DoubleConv(1, width), DoubleConv(width, width)
        self.mid = DoubleConv(width, width)
        self.up1, self.up2 = DoubleConv(width, width), DoubleConv(width, width)
        self.out = nn.Conv2d(width, 1, 1)
        self.pool = nn.AvgPool2d(2)

    def forward(self, x):
        a = self.down1(x); b = self.down2(self.pool(a)); c = self.mid(self.pool(b))
        b = self.up1(nn.functional.interpolate(c, scale_factor=2) + b)
        return self.out(self.up2(nn.functional.interpolate(b, scale_factor=2) + a))


def build(train_initial_lr=1.0):
    torch.manual_seed(11)
    model = UNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=train_initial_lr)
    torch.manual_seed(12)
    batches = [(x := torch.rand(4, 1, 16, 16), x + 0.1 * torch.randn(4, 1, 16, 16)) for _ in range(4)]

    def loss_fn(net, pair):
        clean, noisy = pair
        return nn.functional.mse_loss(net(noisy), clean)

    return dict(model=model, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="aten.mse_loss", first_bad_step=1, line="mse_loss(net(noisy), clean)"))
