"""Fully convolutional segmentation: the rate was tuned for a loss that is averaged over pixels, but the loss is summed here.
After https://github.com/wkentaro/pytorch-fcn/issues/17 (a rate of another loss: nan; you need to tune the rate when you change the loss).
True cause: the learning rate is too high for this loss."""
import torch, torch.nn as nn, torch.nn.functional as F


def fcn(classes=5):
    return nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(),
                         nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, classes, 1))


def cross_entropy2d(score, target):
    log_p = F.log_softmax(score, dim=1)
    return F.nll_loss(log_p, target, ignore_index=-1, reduction="sum")


def build():
    torch.manual_seed(0)
    net = fcn()
    optim = torch.optim.SGD(net.parameters(), lr=2.0, momentum=0.99)
    rng = torch.Generator().manual_seed(0)
    data = [(torch.randn(2, 3, 24, 24, generator=rng), torch.randint(-1, 5, (2, 24, 24), generator=rng)) for _ in range(6)]

    def step(m, b):
        score = m(b[0])
        return cross_entropy2d(score, b[1])

    return dict(model=net, optimizer=optim, batches=data, loss_fn=step, steps=12, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="4", phase="forward", op="aten.convolution", first_bad_step=3, line="score = m(b[0])"))
