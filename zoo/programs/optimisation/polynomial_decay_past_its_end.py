"""Polynomial decay (1 - t / T)^2 with T in epochs, stepped once per batch: after T the square grows again, without a limit.
After https://github.com/ScrollPrize/villa/pull/1495 (per-iteration schedulers were given an epoch count as their horizon).
True cause: the learning rate becomes too high because the horizon has the wrong unit."""
import torch
import torch.nn as nn

EPOCHS, BATCHES_PER_EPOCH = 4, 30


def poly(t):
    return (1 - t / EPOCHS) ** 2


class Segmenter(nn.Module):
    def __init__(self, c=10):
        super().__init__()
        self.enc = nn.Conv1d(2, c, 5, padding=2)
        self.dec = nn.Conv1d(c, 1, 5, padding=2)

    def forward(self, x):
        return self.dec(torch.nn.functional.softplus(self.enc(x)))


def build():
    torch.manual_seed(6)
    net = Segmenter()
    opt = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, poly)
    opt.register_step_post_hook(lambda o, args, kwargs: sched.step())
    g = torch.Generator().manual_seed(7)
    xs = torch.randn(BATCHES_PER_EPOCH, 8, 2, 20, generator=g)
    ys = xs.sum(2, keepdim=True) + 2

    def loss_fn(m, i):
        residual = m(xs[i]) - ys[i]
        return (residual * residual).mean()

    return dict(model=net, optimizer=opt, batches=list(range(BATCHES_PER_EPOCH)), loss_fn=loss_fn, steps=60, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="aten.mul", first_bad_step=33, line="(residual * residual).mean()"))
