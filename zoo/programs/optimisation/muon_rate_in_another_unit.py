"""A deep network without normalisation, trained with a Muon written after a blog post. The author took the rate from a library that
divides by the square root of the matrix' size times its own constant, and writes 30. Newton-Schulz makes every update a matrix of full
rank with singular values near 1, so the first update alone throws all singular values from 1 to about 30, however small the gradient
is. Step 1 then multiplies through 24 such layers. The true cause is the rate."""
import torch
from torch import nn


def newton_schulz(g, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    for _ in range(steps):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.95):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                buf = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buf.mul_(group["momentum"]).add_(p.grad)
                p.add_(newton_schulz(p.grad.add(buf, alpha=group["momentum"])), alpha=-group["lr"])


class DeepNet(nn.Module):
    def __init__(self, d=16, depth=24):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(d, d, bias=False) for _ in range(depth)])

    def forward(self, x):
        for layer in self.layers:
            x = nn.functional.leaky_relu(layer(x), 0.2)
        return x


def loss_fn(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def build():
    torch.manual_seed(20)
    model = DeepNet()
    for layer in model.layers:
        nn.init.orthogonal_(layer.weight, gain=1.0)
    batches = [(torch.randn(32, 16), torch.randn(32, 16)) for _ in range(4)]
    opt = Muon(model.parameters(), lr=30.0)
    truth = dict(
        cause="lr_too_high", first_bad_step=1, phase="forward", module="loss", op="aten.mse_loss",
        line="return nn.functional.mse_loss(model(batch[0]), batch[1])",
        why="updates have singular values near 1 times the rate: the first one turns singular values of 1 into about 30, and 24 layers multiply them",
        repair=("lr=30.0", "lr=0.3"),
    )
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None, truth=truth)
