"""A detection head is trained with the rate that the linear scaling rule gives for 48 GPUs, although one process sees 8 images.
After https://github.com/open-mmlab/mmdetection/issues/1710 (lr 0.12 for 48 GPUs: nan; 0.04 is better).
True cause: the learning rate is too high; SGD with momentum overshoots a little more with every update."""
import torch
from torch import nn

CFG = dict(optimizer=dict(lr=0.01, momentum=0.9), world=48, imgs_per_gpu=2, base_batch=16)


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.layer1 = nn.Conv2d(8, 16, 3, stride=2, padding=1)

    def forward(self, x):
        return nn.functional.silu(self.layer1(nn.functional.silu(self.stem(x))))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.reg = Backbone(), nn.Conv2d(16, 4, 1)

    def forward(self, images):
        return self.reg(self.backbone(images)).flatten(2).transpose(1, 2)


def build():
    torch.manual_seed(3)
    model = Detector()
    o = CFG["optimizer"]
    lr = o["lr"] * CFG["world"] * CFG["imgs_per_gpu"] / CFG["base_batch"]
    opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=o["momentum"])
    g = torch.Generator().manual_seed(4)
    batches = [{"img": torch.rand(8, 3, 16, 16, generator=g) * 2, "boxes": torch.rand(8, 16, 4, generator=g) * 16} for _ in range(4)]

    def loss_fn(m, b):
        delta = m(b["img"]) - b["boxes"]
        return delta.square().sum(-1).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=40, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="aten.pow", first_bad_step=4, line="delta.square()"))
