"""A cyclic learning rate lets the loss rise fifty-fold for a few steps and fall again. Healthy: a bump, no failure."""
import torch
from torch import nn


def build():
    torch.manual_seed(7)
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    rates = [0.05] * 5 + [1.3] * 4 + [0.05] * 30
    step = [0]

    def cyc(o, *_):
        step[0] += 1
        o.param_groups[0]["lr"] = rates[min(step[0], len(rates) - 1)]

    opt.register_step_post_hook(cyc)
    g = torch.Generator().manual_seed(8)
    xs = [torch.randn(32, 6, generator=g) for _ in range(4)]
    batches = [(x, x.sum(1, keepdim=True) + 0.05 * torch.randn(32, 1, generator=g)) for x in xs]
    return dict(model=net, optimizer=opt, batches=batches, steps=35, autocast_dtype=None, loss_fn=lambda m, b: nn.functional.mse_loss(m(b[0]), b[1]),
                truth=dict(cause="benign", first_bad_step=None))
