"""A denoiser is tuned by sending the gradient of a reward through all sampling steps. Each step is bounded by a sine, so the samples and the reward are finite, but its slope
is about 12; the fourth batch is sampled with 160 steps, and the gradient grows beyond float32.
After https://github.com/Tencent-Hunyuan/UniRL/pull/120 (reward backpropagation through the last K steps only).
True cause: a gradient that explodes over the sampling steps."""
import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self, d=6):
        super().__init__()
        self.linear = nn.Linear(d, d)
        with torch.no_grad():
            self.linear.weight.copy_(12.0 * torch.eye(d))
            self.linear.bias.zero_()

    def forward(self, x, t):
        return torch.sin(self.linear(x)) * (0.5 + 0.5 * t)


class Sampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.denoiser = Denoiser()

    def forward(self, x, steps):
        for k in range(steps):
            x = self.denoiser(x, 1.0)
        return x


class Reward(nn.Module):
    def __init__(self, d=6):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, 16), nn.Tanh(), nn.Linear(16, 1)).requires_grad_(False)

    def forward(self, sample):
        return self.net(sample).mean()


def build():
    torch.manual_seed(0)
    model = nn.ModuleDict({"sampler": Sampler(), "reward": Reward()})
    opt = torch.optim.SGD(model["sampler"].parameters(), lr=1e-6)
    g = torch.Generator().manual_seed(7)
    steps = [2, 2, 3, 160, 2]
    batches = [(torch.randn(16, 6, generator=g), n) for n in steps]

    def loss_fn(m, batch):
        noise, n = batch
        return -m["reward"](m["sampler"](noise, n))

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="exploding_gradient", also=("exploding_recurrence",), module="sampler.denoiser", also_module=("sampler.denoiser.linear",), phase="backward", op="aten.mul", also_op=("aten.mm", "aten.sum", "aten.add"),
                           first_bad_step=3, loss_finite_at_first_bad_step=True, why="the slope of a step is well above one on average, and the product of 160 of them is not representable"))
