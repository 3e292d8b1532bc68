"""Age estimation from small face crops: CNN with BatchNorm, SGD with momentum 0.9.

What goes wrong: lr=1.0 with momentum 0.9. BatchNorm keeps the features bounded, but the last
linear layer is trained with a squared error and diverges.
True cause: a learning rate of 1.0 with momentum 0.9 makes the regression head diverge until its output
overflows."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def conv_bn(c_in, c_out):
    return nn.Sequential(nn.Conv2d(c_in, c_out, 3, stride=2, padding=1, bias=False),
                         nn.BatchNorm2d(c_out), nn.ReLU(inplace=True))


class AgeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = conv_bn(1, 8)
        self.stage1 = conv_bn(8, 16)
        self.stage2 = conv_bn(16, 32)
        self.fc = nn.Linear(32, 1)

    def forward(self, img):
        h = self.stage2(self.stage1(self.stem(img)))
        h = F.adaptive_avg_pool2d(h, 1).flatten(1)
        return self.fc(h).squeeze(1)


def crops(n, seed):
    g = torch.Generator().manual_seed(seed)
    age = torch.rand(n, generator=g)
    img = torch.randn(n, 1, 16, 16, generator=g) * (0.5 + age.view(-1, 1, 1, 1))
    return img, age * 8.0


def build():
    torch.manual_seed(11)
    model = AgeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, nesterov=True)
    batches = [crops(16, s) for s in range(10)]

    def loss_fn(model, batch):
        img, age = batch
        return F.mse_loss(model(img), age)

    return dict(model=model, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=60, autocast_dtype=None,
                truth=dict(cause="lr_too_high", also=("exploding_gradient",), first_bad_step=3, phase="backward", module="stage2.1",
                           op="aten.native_batch_norm_backward",
                           also_phase=("forward",), also_module=("stage1.1",), also_op=("aten.native_batch_norm",), line="h = self.stage2(self.stage1(self.stem(img)))",
                           repair=("lr=1.0, momentum=0.9", "lr=0.005, momentum=0.9")))
