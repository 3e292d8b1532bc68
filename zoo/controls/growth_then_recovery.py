"""CONTROL: SGD at the edge: the rate is too high for the first steps, the loss climbs by orders of magnitude, then the schedule lowers
the rate and the run recovers. Unpleasant, but every number is finite."""
import torch
import torch.nn as nn


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 1, bias=False))
    opt = torch.optim.SGD(model.parameters(), lr=3.0)
    sched = torch.optim.lr_scheduler.MultiStepLR(opt, milestones=[5], gamma=0.1)
    opt.register_step_post_hook(lambda *a: sched.step())
    g = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(16):
        x = torch.randn(64, 6, generator=g)
        batches.append((x, x.sum(-1, keepdim=True)))

    def loss_fn(m, b):
        return nn.functional.mse_loss(m(b[0]), b[1])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=16, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
