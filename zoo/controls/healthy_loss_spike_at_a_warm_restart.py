"""Cosine annealing with warm restarts: after eight steps the rate jumps from nearly zero to its maximum, and the loss rises more than a
hundred times and comes back. The optimizer is sign descent, whose rate bounds every update, so nothing can run away; the rate of 0.3
would be absurd for SGD on this model. Healthy."""
import math
import torch
from torch import nn


class SignDescent(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad.sign(), alpha=-group["lr"])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x):
        return self.body(x).squeeze(-1)


def loss_fn(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def feed(data, opt, period=8, top=0.3):
    for step, batch in enumerate(data):
        for group in opt.param_groups:
            group["lr"] = top * 0.5 * (1 + math.cos(math.pi * (step % period) / period)) if step >= period else 0.01 / (step + 1)
        yield batch


def build():
    torch.manual_seed(65)
    model = Net()
    data = []
    for _ in range(24):
        x = torch.randn(64, 8)
        data.append((x, torch.tanh(x[:, 0]) * 0.3))
    opt = SignDescent(model.parameters(), lr=0.01)
    truth = dict(cause="benign", first_bad_step=None, phase=None, module=None, op=None,
                 why="the spike at the restart is the schedule at work; every update is bounded by the rate and the loss comes down again",
                 **{"not": ["lr_too_high", "exploding_gradient", "resume_lr_jump"]})
    return dict(model=model, optimizer=opt, batches=feed(data, opt), loss_fn=loss_fn, steps=24, autocast_dtype=None, truth=truth)
