"""The rate is computed on the device, as in a compiled training step: warm-up, then a cosine over the remaining steps. The short trial run has as many
warm-up steps as steps, and the progress of the cosine is 0 / 0.
After https://github.com/karpathy/nanoGPT/pull/691 (0 / 0 at the boundary when lr_decay_iters equals warmup_iters).
True cause: division by zero in the schedule."""
import math

import torch
from torch import nn


class CosineWithWarmup:
    def __init__(self, optimizer, peak, warmup, total):
        self.peak, self.warmup, self.total = peak, torch.tensor(float(warmup)), torch.tensor(float(total))
        self.it = torch.tensor(-1.0)
        optimizer.register_step_pre_hook(self.before_step)

    def before_step(self, optimizer, args, kwargs):
        self.it += 1
        for group in optimizer.param_groups:
            group["lr"] = self.rate()

    def rate(self):
        progress = (self.it - self.warmup) / (self.total - self.warmup)
        cosine = 0.5 * self.peak * (1 + torch.cos(math.pi * progress.clamp(0.0, 1.0)))
        ramp = self.peak * (self.it + 1) / (self.warmup + 1)
        return ramp if self.it < self.warmup else cosine


class SignMomentum(torch.optim.Optimizer):
    """Lion."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99)):
        super().__init__(params, dict(lr=lr, betas=betas))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.sub_(group["lr"] * m.lerp(p.grad, 1 - b1).sign())
                m.lerp_(p.grad, 1 - b2)


def build():
    torch.manual_seed(7)
    model = nn.Sequential(nn.Embedding(13, 12), nn.Flatten(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 13))
    opt = SignMomentum(model.parameters())
    CosineWithWarmup(opt, peak=3e-4, warmup=4, total=4)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(0, 13, (10, 4), generator=g), torch.randint(0, 13, (10,), generator=g)) for _ in range(6)]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), steps=6, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="optimizer", phase="optimizer", op="aten.div", first_bad_step=4, loss_finite_at_first_bad_step=True,
                           grads_finite=True, line="progress = (self.it - self.warmup) / (self.total - self.warmup)",
                           why="after four steps the warm-up is over and no decay step is left: 0 / 0; clamp keeps NaN"))
