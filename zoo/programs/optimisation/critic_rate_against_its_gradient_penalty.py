"""WGAN-GP in one backward through a gradient reversal, SGD, with a rate for the critic that was copied from its Adam without betas: 5.
The penalty is quadratic in the product of the critic's layers; far beyond the stable rate each update overshoots by more than the last.
The penalty's own norm is safe (it has an epsilon). The true cause is the critic's rate."""
import torch
from torch import nn


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 12))
        self.critic = nn.Sequential(nn.Linear(12, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))


def loss_fn(model, batch):
    real, z, mix = batch
    fake = model.generator(z)
    point = (mix * real + (1 - mix) * fake.detach()).requires_grad_()
    grad = torch.autograd.grad(model.critic(point).sum(), point, create_graph=True)[0]
    norm = (grad.pow(2).sum(1) + 1e-12).sqrt()
    penalty = 10 * (norm - 1).pow(2).mean()
    return model.critic(Reverse.apply(fake)).mean() - model.critic(real).mean() + penalty


def build():
    torch.manual_seed(31)
    model = GAN()
    batches = [(torch.randn(32, 12) + 1, torch.randn(32, 8), torch.rand(32, 1)) for _ in range(5)]
    opt = torch.optim.SGD([dict(params=model.generator.parameters(), lr=1e-4), dict(params=model.critic.parameters(), lr=5.0)])
    truth = dict(
        cause="lr_too_high", first_bad_step=2, phase="forward", module="loss", op="aten.pow", also_op=["aten.mm", "aten.addmm"],
        also_module=["critic.0", "critic.2", "critic.4", "critic"], line="norm = (grad.pow(2).sum(1) + 1e-12).sqrt()",
        why="the critic's weights grow by orders of magnitude at each step from the first; with a hundredth of its rate they do not",
        repair=("lr=5.0", "lr=0.05"),
    )
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=None, truth=truth)
