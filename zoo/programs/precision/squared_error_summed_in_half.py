"""A model in float16 sums the squared errors of an image in float16 before it divides; one bright image passes 65504.
Written for this.
True cause: the loss is reduced in half precision and overflows."""
import torch
from torch import nn


class Auto(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ConvTranspose2d(4, 1, 4, stride=2, padding=1)

    def forward(self, x):
        return self.dec(torch.relu(self.enc(x)))


def build():
    torch.manual_seed(0)
    net = Auto().half()
    opt = torch.optim.SGD(net.parameters(), lr=1e-7)
    g = torch.Generator().manual_seed(0)
    gain = [4.0, 5.0, 7.0, 5.0]
    images = [(torch.rand(2, 1, 32, 32, generator=g) * k).half() for k in gain]
    images[2][1] += 9

    def loss_fn(m, x):
        se = (m(x) - x) ** 2
        per_image = se.flatten(1).sum(1)
        return per_image.mean() / se[0].numel()

    return dict(model=net, optimizer=opt, batches=images, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="fp16_loss_overflow", module="loss", phase="forward", op="aten.sum", first_bad_step=2, line="per_image = se.flatten(1).sum(1)", sample=1))
